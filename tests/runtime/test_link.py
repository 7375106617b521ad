"""A CPU as a device behind a link: what is computed where, and that it changes no bit."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result

from miractl.cli.link import parse_link
from miractl.errors import MiractlError, UsageError
from miractl.native.residency import State
from miractl.plan.machine import Given, machine_for
from miractl.policy.keys import ExpertKey
from miractl.policy.routing import Routed, Segment
from miractl.runtime.emulated import EmulatedLink
from miractl.runtime.engine import Engine, EngineOptions
from miractl.runtime.host_tier import HostTier, refuse_too_large
from miractl.runtime.ticket import BACKGROUND
from miractl.telemetry.snapshot import Snapshot
from tests.runtime.models import options

RECORD = 8192
PROMPTS = [torch.tensor([[5, 17, 80, 3, 44, 9, 61, 30]]), torch.tensor([[9]]), torch.tensor([[4]])]
Run = Callable[..., Result]


class Time:
    """A clock that the link's sleep moves, and every look at it a little."""

    def __init__(self, look: float) -> None:
        self.now, self.look = 0.0, look

    def __call__(self) -> float:
        self.now += self.look
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def linked(folder: Path, **changes: object) -> EngineOptions:
    rate = 1e3 * RECORD  # a record takes a thousandth of a second
    asked = {"emulate_link": rate, **changes}
    return dataclasses.replace(options(folder, "50%"), **asked)  # type: ignore[arg-type]


def run(asked: EngineOptions, look: float = 1e-5) -> tuple[list[torch.Tensor], Snapshot]:
    """Outputs of a few steps, on a clock of which a look takes so long."""
    time = Time(look)
    engine = Engine.load(asked, clock=time, sleep=time.sleep)
    try:
        with torch.no_grad():
            return [engine.model(prompt).logits for prompt in PROMPTS * 4], engine.snapshot()
    finally:
        engine.close()


@pytest.mark.parametrize("prefetch", [True, False])
def test_where_experts_are_computed_changes_no_bit(packed: Path, prefetch: bool) -> None:
    plain = options(packed, "50%", prefetch=prefetch)
    found, _ = run(plain)
    for mode in ("off", "auto", "on"):
        asked = dataclasses.replace(plain, emulate_link=1e3 * RECORD, host_compute=mode)
        outputs, facts = run(asked)
        assert all(map(torch.equal, found, outputs))
        cache = facts.cache
        assert cache.misses == cache.waited + cache.copied + cache.on_host > 0
        assert (cache.on_host > 0) == (mode != "off")
        assert (cache.copied == cache.waited == 0) == (mode == "on")


def test_auto_copies_over_a_link_that_is_faster_than_the_host(packed: Path) -> None:
    _, slow = run(linked(packed))
    _, fast = run(linked(packed, emulate_link=1e9 * RECORD))
    assert fast.cache.on_host == 0
    assert slow.cache.on_host > slow.cache.copied


def test_what_the_host_computes_becomes_resident_in_the_background(packed: Path) -> None:
    _, facts = run(linked(packed, host_compute="on", parameters=off(packed)), look=1e-3)
    assert facts.cache.hits > 0
    assert facts.prefetch.issued == 0
    assert facts.transfer.bytes >= RECORD * facts.cache.resident / 2


def off(folder: Path) -> dict[str, object]:
    return options(folder, None, prefetch=False).parameters


def test_a_fill_that_has_not_arrived_is_no_hit(packed: Path) -> None:
    time = Time(0.0)
    engine = Engine.load(
        linked(packed, host_compute="on", parameters=off(packed)), clock=time, sleep=time.sleep
    )
    try:
        cache = engine.cache
        scores, alone = np.ones((1, 2), np.float32), (Segment(0, 0, 1, 1),)
        step = Routed(0, np.array([[1, 2]]), scores, alone, 0)

        def serve() -> list[object]:
            cache.route(step, None)
            return list(cache.serve(step))

        first = serve()
        assert first == [[[1, -1], [2, -1]]]
        assert cache.residency.is_resident(ExpertKey(0, 1))
        assert serve() == first  # nothing has arrived
        time.now += 1.5e-3
        hits, rest = serve()
        assert [expert for expert, _ in hits] == [1]
        assert rest == [[2, -1]]
        assert (cache.counters.on_host, cache.counters.copied, cache.counters.waited) == (5, 0, 0)
    finally:
        engine.close()


def test_everything_that_is_told_says_emulated(packed: Path) -> None:
    _, facts = run(linked(packed))
    assert facts.transfer.source == "emulated"
    assert facts.transfer.peak_bytes_per_second == 1e3 * RECORD
    assert facts.memory.arena_bytes == 24 * RECORD  # all experts, in the host tier
    assert facts.cache.slots == 12
    assert facts.transfer.bytes % RECORD == 0
    assert facts.transfer.bytes > 0


def test_the_host_tier_has_every_record_byte_for_byte(packed: Path) -> None:
    stored = (packed / "experts.bin").read_bytes()
    engine = Engine.load(linked(packed))
    try:
        tier = engine.arena
        assert isinstance(tier, HostTier)
        assert tier._records.numpy().tobytes() == stored
        (base,) = tier.addresses(0, [(0, 5)])
        assert tier.addresses(0, [(1, 0), (0, 3)]) == [base + RECORD, base]
        assert tier.addresses(2, [(7, 0)]) == [base + 23 * RECORD]
    finally:
        engine.close()


def test_a_host_tier_that_does_not_fit_is_refused() -> None:
    machine = machine_for(None, device="cpu", given=Given(host_memory=8 * 2**30))
    refuse_too_large(2**30, machine)
    with pytest.raises(MiractlError, match="host tier"):
        refuse_too_large(8 * 2**30, machine)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"emulate_link": None, "host_compute": "auto"}, "there is no device"),
        ({"expert_memory": None}, "needs --expert-memory"),
    ],
)
def test_what_makes_no_sense_is_refused(
    packed: Path, changes: dict[str, object], what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        Engine.load(linked(packed, **changes))


def test_experts_that_torch_computes_are_refused(packed: Path) -> None:
    with pytest.raises(UsageError, match="int8 or int4"):
        Engine.load(linked(packed.parent / "source"))


def test_a_rate_or_a_profile() -> None:
    assert parse_link("15.8GB/s") == 15.8e9
    assert parse_link("a10") == pytest.approx(31.5e9, rel=0.01)
    for wrong in ("0GB/s", "cpu", "fast"):
        with pytest.raises(ValueError, match=r"got|tells of no link|rate"):
            parse_link(wrong)


def test_bench_decode_says_emulated(packed: Path, miractl: Run) -> None:
    rounds = ("--prompt-tokens", "4", "--tokens", "2", "--repeat", "1")
    link = ("--emulate-link", "8MB/s", "--expert-memory", "50%")
    told = miractl("bench", "decode", str(packed), *rounds, *link)
    assert "behind an emulated link of 8 MB/s" in told.stdout
    told = miractl("bench", "decode", str(packed), *rounds, "--host-compute", "on")
    assert told.exit_code == 2
    assert "there is no device" in told.stderr


class TestLink:
    """What the cache asks of a link beyond order and time."""

    @pytest.fixture
    def time(self) -> Time:
        return Time(0.0)

    @pytest.fixture
    def link(self, time: Time) -> EmulatedLink:
        return EmulatedLink(100.0, 200, time, time.sleep)  # 2 s each

    def test_a_bet_that_is_called_in_overtakes(self, link: EmulatedLink, time: Time) -> None:
        link.submit(ExpertKey(0, 0), 0)
        likely = link.submit(ExpertKey(0, 1), 1, rank=0.1)
        wanted = link.submit(ExpertKey(0, 2), 2, rank=0.9)
        assert (link.pending, link.backlog) == ((1, 2), 2.0)
        link.overtake(wanted)
        assert (link.pending, link.backlog) == ((2, 1), 4.0)
        link.wait(wanted)
        assert (wanted.finished_at, likely.state) == (4.0, State.RUNNING)
        assert (wanted.began_at, link.stats.waited_seconds) == (2.0, 4.0)
        link.wait(likely)
        assert link.stats.bytes == 600  # each once

    def test_the_background_goes_last_and_is_no_bet(self, link: EmulatedLink) -> None:
        link.submit(ExpertKey(0, 0), 0)
        last = link.submit(ExpertKey(0, 1), 1, BACKGROUND)
        bet = link.submit(ExpertKey(0, 2), 2, rank=0.99)
        assert link.pending == (1, 1)
        link.wait(last)
        assert bet.finished_at == 4.0
        assert link.pending == (0, 0)
