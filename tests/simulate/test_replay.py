"""Replays in C: the same decisions as plain Python, and Belady the best there can be."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.native.replay import Admission, Cache, Kind, Routing, Rule, replay
from miractl.simulate import reference
from tests.simulate.conftest import random_routing, routings

pytestmark = pytest.mark.usefixtures("kernels")
FORCED_AND_BYPASS = (Admission.ALWAYS, Admission.WORTHIER)


def cache_for(
    routing: Routing, ways: int, pooled: bool, admission: Admission, shifts: bool = False
) -> Cache:
    each = (ways * routing.layers,) if pooled else (ways,) * routing.layers
    return Cache(each, pooled, admission, shifts)


def assert_same(routing: Routing, cache: Cache, rule: Rule) -> None:
    fast = replay(routing, cache, rule)
    slow = reference.replay(routing, cache, reference.worth_of(routing, rule))
    np.testing.assert_array_equal(fast.hits, slow.hits)
    np.testing.assert_array_equal(fast.entered, slow.entered)


@settings(deadline=None)
@given(
    routing=routings(),
    ways=st.integers(0, 5),
    pooled=st.booleans(),
    admission=st.sampled_from(FORCED_AND_BYPASS),
    kind=st.sampled_from([Kind.LRU, Kind.LFU, Kind.BELADY]),
    shifts=st.booleans(),
)
def test_the_library_decides_as_plain_python(
    routing: Routing, ways: int, pooled: bool, admission: Admission, kind: Kind, shifts: bool
) -> None:
    cache = cache_for(routing, ways, pooled, admission, shifts)
    assert_same(routing, cache, Rule(kind, decay=0.75))


@settings(deadline=None, max_examples=40)
@given(
    routing=routings(),
    ways=st.integers(1, 5),
    pooled=st.booleans(),
    threshold=st.floats(0, 0.9),
    token=st.sampled_from([0.01, 0.05, 0.13, 0.5]),
)
def test_heat_decides_as_the_runtimes_own_score(
    routing: Routing, ways: int, pooled: bool, threshold: float, token: float
) -> None:
    rule = Rule(Kind.HEAT, decay=0.5, threshold=threshold, token_seconds=token)
    assert_same(routing, cache_for(routing, ways, pooled, Admission.HOTTER), rule)


def most_hits(routing: Routing, slots: int, bypass: bool) -> int:
    """The most hits that any decisions can have in one pool, by trying all that differ."""
    steps = [
        frozenset((layer, int(expert)) for expert in routing.ids[token, layer])
        for token in range(routing.tokens)
        for layer in range(routing.layers)
    ]
    best = {frozenset[tuple[int, int]](): 0}  # what is held: most hits so far
    for needed in steps:
        after: dict[frozenset[tuple[int, int]], int] = {}
        for held, hits in best.items():
            hits += len(held & needed)
            for kept in _may_hold(held, needed, slots, bypass):
                after[kept] = max(after.get(kept, 0), hits)
        best = after
    return max(best.values())


def _may_hold(
    held: frozenset[tuple[int, int]], needed: frozenset[tuple[int, int]], slots: int, bypass: bool
) -> list[frozenset[tuple[int, int]]]:
    everybody = held | needed
    size = min(slots, len(everybody))
    must_enter = not bypass and len(needed) <= slots
    keep = needed if must_enter else frozenset[tuple[int, int]]()
    others = sorted(everybody - keep)
    return [keep | frozenset(more) for more in combinations(others, size - len(keep))]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    layers=st.integers(1, 2),
    top=st.integers(1, 2),
    slots=st.integers(1, 4),
    bypass=st.booleans(),
)
def test_belady_hits_most_and_the_others_no_more(
    seed: int, layers: int, top: int, slots: int, bypass: bool
) -> None:
    routing = random_routing(seed, 10, layers, 4, top)
    cache = Cache((slots,), True, FORCED_AND_BYPASS[bypass])
    best = most_hits(routing, slots, bypass)
    if slots >= top or bypass:  # with fewer, who of the step stays is not Belady's choice
        assert int(replay(routing, cache, Rule(Kind.BELADY)).hits.sum()) == best
    for kind in (Kind.LRU, Kind.LFU):
        assert int(replay(routing, cache, Rule(kind)).hits.sum()) <= best


def test_lru_by_hand() -> None:
    ids = np.array([1, 2, 1, 3, 2, 1]).reshape(-1, 1, 1)
    outcome = replay(Routing(ids, 4), Cache((2,)), Rule(Kind.LRU))
    assert outcome.hits.ravel().tolist() == [0, 0, 1, 0, 0, 0]
    assert outcome.entered.tolist() == [5]


def test_a_pool_below_one_token_never_hits_by_recency() -> None:
    routing = Routing(np.zeros((20, 4, 1), np.int64), 1)
    assert replay(routing, Cache((3,), pooled=True), Rule(Kind.LRU)).hits.sum() == 0
    assert replay(routing, Cache((4,), pooled=True), Rule(Kind.LRU)).hits.sum() == 19 * 4


def test_random_is_the_seeds_and_worse_than_belady() -> None:
    routing = random_routing(1, 300, 2, 16, 2)
    one, again, other = (
        replay(routing, Cache((4, 4)), Rule(Kind.RANDOM, seed=seed)).hits for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    assert one.sum() < replay(routing, Cache((4, 4)), Rule(Kind.BELADY)).hits.sum()


def test_what_does_not_fit_is_refused() -> None:
    routing = random_routing(1, 5, 2, 4, 2)
    for ways in ((1,), (1, -1), (1, 1, 1)):
        with pytest.raises(ValueError, match="Got ways"):
            replay(routing, Cache(ways), Rule(Kind.LRU))
    with pytest.raises(ValueError, match="Got a pool for random"):
        replay(routing, Cache((4,), pooled=True), Rule(Kind.RANDOM))
    with pytest.raises(ValueError, match="Got admission ALWAYS for HEAT"):
        replay(routing, Cache((4, 4)), Rule(Kind.HEAT))
    with pytest.raises(ValueError, match="twice"):
        Routing(np.zeros((1, 1, 2), np.int64), 4)
    with pytest.raises(ValueError, match="of 4 experts"):
        Routing(np.full((1, 1, 1), 4), 4)
    with pytest.raises(ValueError, match="expected"):
        Routing(np.zeros((1, 2)), 4)
