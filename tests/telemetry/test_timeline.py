"""Accounts of steps, and what binds."""

import pytest

from miractl.telemetry.timeline import (
    PARTS,
    Account,
    Machine,
    Moved,
    StepTimes,
    Timeline,
    bounds,
    split,
)
from miractl.telemetry.verdict import verdict


def step(number: int, tokens: int = 1, sequences: int = 1, **parts: float) -> StepTimes:
    times = dict.fromkeys(PARTS, 0.0) | parts
    moved = Moved(hits=6, misses=2, late=1, disk_bytes=2_000, copy_seconds=0.5)
    seconds = sum(times.values()) + 0.25
    return StepTimes(number, tokens, sequences, 1000.0, seconds, times, moved, os_bytes=2_100)


def machine(**changed: object) -> Machine:
    facts = {
        "device": "cpu",
        "threads": 2,
        "dense_bytes": 1_000,
        "expert_bytes": 500,
        "memory_rate": 10_000.0,
        "transfer_source": "disk",
        "transfer_rate": 1_000.0,
    }
    return Machine(**(facts | changed))


def test_an_account_adds_up_and_keeps_what_no_part_has():
    account = Account.of([step(1, attention=1.0, waiting=2.0), step(2, attention=3.0)])
    assert account.steps == 2
    assert account.seconds == 6.5
    assert account.parts["attention"] == 4.0
    assert account.unmeasured == pytest.approx(0.5)
    assert account.moved == Moved(12, 4, 2, 4_000, 0, 1.0)
    assert account.os_bytes == 4_200


def test_bytes_unknown_in_one_step_are_unknown_in_all():
    mute = step(2)
    mute = StepTimes(**{name: getattr(mute, name) for name in mute.__slots__} | {"os_bytes": None})
    assert Account.of([step(1), mute]).os_bytes is None


def test_bounds_are_least_times_from_measured_rates_the_longest_first():
    account = Account.of([step(1), step(2)])
    found = bounds(account, machine())
    # 2 steps x 1,000 dense + 16 experts x 500 = 10,000 bytes; 4,000 brought.
    assert [(b.resource, b.bytes, b.seconds) for b in found] == [
        ("disk", 4_000, 4.0),
        ("memory", 10_000, 1.0),
    ]
    assert [b.resource for b in bounds(account, machine(memory_rate=None))] == ["disk"]


@pytest.mark.parametrize(
    ("parts", "changed", "words"),
    [
        ({"waiting": 9.0, "hits": 1.0}, {}, "Bringing experts binds"),
        ({"waiting": 4.0, "hits": 3.0, "attention": 3.0}, {}, "Bringing experts binds"),
        ({"hits": 1.0}, {"memory_rate": 5_000.0}, "Memory binds"),
        ({"attention": 9.0}, {}, "The largest part is attention"),
        ({"attention": 9.0}, {"memory_rate": None}, "not known here"),
    ],
)
def test_the_verdict_names_what_binds(parts, changed, words):
    assert words in verdict(Account.of([step(1, **parts)]), machine(**changed))


def test_steps_with_prompts_are_told_apart():
    prompt, one, two = step(1, tokens=7), step(2), step(3, tokens=2, sequences=2)
    assert split([prompt, one, two]) == ([prompt], [one, two])


def test_a_timeline_survives_json():
    timeline = Timeline("demo", machine(), (step(1, router=0.5), step(2)))
    assert Timeline.from_json(timeline.to_json()) == timeline
    with pytest.raises(ValueError, match=r"miractl\.timeline/1"):
        Timeline.from_json(timeline.to_json() | {"schema": "other"})
