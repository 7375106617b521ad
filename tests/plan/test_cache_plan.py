"""Sets and ways, and hit rates: assumed ones, and those of a trace."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.checkpoint.geometry import Geometry
from miractl.errors import UsageError
from miractl.plan.cache import divide, expected_hits, token_cycle
from miractl.plan.catalog import published
from miractl.plan.trace import (
    Step,
    belady_hits,
    lru_hits,
    read_trace,
    replayed_hits,
)
from miractl.telemetry.trace import Trace


def geometry(name: str = "gpt-oss-20b") -> Geometry:
    found = published(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("slots", "cores", "expected"),
    [
        (56, 4, (14, 4)),
        (57, 2, (14, 4)),
        (55, 8, (11, 5)),
        (56, 24, (7, 8)),
        (56, 96, (7, 8)),
        (3, 8, (1, 3)),
        (0, 8, (0, 1)),
    ],
)
def test_few_cores_few_ways(slots: int, cores: int, expected: tuple[int, int]) -> None:
    assert divide(slots, cores) == expected


@given(slots=st.integers(0, 10_000), cores=st.integers(1, 256))
def test_the_division_keeps_the_slots(slots: int, cores: int) -> None:
    sets, ways = divide(slots, cores)
    assert sets * ways <= slots
    assert slots - sets * ways < ways
    assert divide(max(8, slots), cores)[1] <= divide(max(8, slots), cores + 1)[1]


def test_the_token_cycle() -> None:
    assert token_cycle(geometry()) == 24 * 4
    assert token_cycle(geometry("DeepSeek-V2-Lite")) == 26 * 6


def test_the_assumed_range_is_labelled_and_meets_what_was_seen() -> None:
    model = geometry()
    quarter = expected_hits(model, model.expert_count // 4, 24)
    assert (quarter.low, quarter.high) == (0.5, 0.78)
    assert quarter.is_assumed
    assert quarter.origin.startswith("assumed: ")
    assert expected_hits(model, model.expert_count, 24).low == 1.0


def test_too_few_ways_and_coarse_experts_may_hit_nothing() -> None:
    model = geometry()
    assert expected_hits(model, 3 * 24, 24).low == 0.0
    assert expected_hits(model, 20, 20).low == 0.0
    coarse = geometry("Mixtral-8x7B")
    assert expected_hits(coarse, coarse.expert_count // 2, 32).low == 0.5


@given(st.integers(0, 767), st.integers(0, 767))
def test_more_residents_never_hit_less(one: int, other: int) -> None:
    few, many = sorted((one, other))
    small, large = (expected_hits(geometry(), count, 24) for count in (few, many))
    assert small.low <= large.low
    assert small.high <= large.high


def exhaustive(steps: list[Step], ways: int) -> int:
    """The most hits that any replay can have which brings in all it needs and can keep."""

    def best(step: int, held: frozenset[int]) -> int:
        if step == len(steps):
            return 0
        keys = frozenset(steps[step][1])
        hits = len(keys & held)
        if len(keys) >= ways:
            kept = (keys & held) | frozenset(sorted(keys - held)[: ways - len(keys & held)])
            return hits + best(step + 1, kept)
        others, room = held - keys, ways - len(keys)
        if len(others) <= room:
            return hits + best(step + 1, keys | others)
        from itertools import combinations

        return hits + max(
            best(step + 1, keys | frozenset(kept)) for kept in combinations(others, room)
        )

    return best(0, frozenset())


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=2, unique=True), max_size=8),
    st.integers(2, 3),
)
def test_beladys_hits_are_the_most_there_can_be(asked: list[list[int]], ways: int) -> None:
    steps = [(number, tuple(keys)) for number, keys in enumerate(asked)]
    assert lru_hits(steps, ways) <= belady_hits(steps, ways) == exhaustive(steps, ways)


def test_lru_by_hand() -> None:
    steps = [(n, (key,)) for n, key in enumerate([1, 2, 1, 3, 2, 1])]
    assert lru_hits(steps, 2) == 1  # the second 1; 3 evicts 2, 2 evicts 1
    assert belady_hits(steps, 2) == 2
    assert lru_hits(steps, 3) == 3


def test_a_trace_replays_each_set_of_layers() -> None:
    ids = np.array([[[0], [5]], [[0], [5]], [[1], [5]], [[0], [5]]], dtype=np.int64)
    trace = Trace("t.npz", ids)
    own = replayed_hits(trace, (1, 1))
    assert own.low == own.high == 4 / 8  # layer 0: one repeat, layer 1: three
    both = replayed_hits(trace, (1,))
    assert both.low == 0.0  # two layers that take turns in one way
    assert not own.is_assumed


def test_a_trace_of_the_model_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    ids = np.random.default_rng(0).integers(0, 32, (50, 24, 4), dtype=np.int16)
    np.savez(path, topk_ids=ids)
    trace = read_trace(path, geometry())
    assert trace.ids.shape == (50, 24, 4)
    hits = replayed_hits(trace, (8,) * 24)
    assert 0.1 < hits.low < hits.high < 0.7


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((5, 24, 2), dtype=np.int64), r"topk_ids is \[5, 24, 2\], expected"),
        (np.zeros((5, 24, 4)), "expected whole numbers"),
        (np.full((5, 24, 4), 32), "expert 32 of 32"),
        (None, "No such file"),
    ],
)
def test_another_trace_is_refused(tmp_path: Path, array: np.ndarray | None, reason: str) -> None:
    path = tmp_path / "t.npz"
    if array is not None:
        np.savez(path, topk_ids=array)
    with pytest.raises(UsageError, match=reason):
        read_trace(path, geometry())


def test_no_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    path.write_text("hello")
    with pytest.raises(UsageError, match=r"no \.npz with topk_ids"):
        read_trace(path, geometry())
