"""Ways that move between sets: none is lost, nobody in use has to go, C and Python move alike."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.native.places import SlotPool
from miractl.native.replay import Admission, Cache, Kind, Routing, Rule, replay
from miractl.native.residency import Role
from miractl.policy.allocation import EVERY, KEPT, Allocation
from miractl.policy.brain import Brain
from miractl.policy.eviction import LeastOftenUsed, LeastRecentlyUsed
from miractl.policy.heat import HeatTable
from miractl.policy.keys import ExpertKey
from miractl.policy.plain_slots import PlainSlots
from miractl.policy.registry import make_policy
from miractl.policy.routing import Routed, Segment
from miractl.policy.slots import CompiledSlots, SlotTable, one_pool
from miractl.simulate import reference

EXPERTS, TOP = 12, 2


def uneven(seed: int, tokens: int, layers: int) -> Routing:
    """Layers with ever more favourites: the first asks for few experts, the last for many."""
    rng = np.random.default_rng(seed)
    ids = np.empty((tokens, layers, TOP), np.int64)
    for layer in range(layers):
        liked = 2 + 8 * layer // (layers - 1) + rng.integers(0, 3) * (layer > 0)
        order = rng.permutation(EXPERTS)
        for token in range(tokens):
            among = EXPERTS if rng.random() < 0.08 else liked
            ids[token, layer] = np.sort(rng.choice(order[:among], TOP, replace=False))
    return Routing(ids, EXPERTS)


def brain(name: str, layers: int) -> Brain:
    heat = HeatTable(layers, EXPERTS, TOP, clock=lambda: 0.0, threshold=0.15)
    return Brain(make_policy(name, TOP, 4, heat), heat)


def serve(table: SlotTable, routing: Routing, token: int, layer: int) -> None:
    ids = routing.ids[token, layer][None].astype(np.int64)
    step = Routed(layer, ids, np.ones(ids.shape, np.float32), (Segment(0, 0, 1, token),), token)
    table.record(step)
    table.ask(step)
    table.end_transit()
    while table.waits:
        table.ask_again()
        table.end_transit()


@given(
    ways=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    uses=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, EXPERTS - 1), st.booleans()), max_size=80
    ),
    full=st.lists(st.booleans(), min_size=5, max_size=5),
    bets=st.lists(st.integers(0, 3), min_size=5, max_size=5),
)
def test_ways_are_never_lost(
    ways: list[int], uses: list[tuple[int, int, bool]], full: list[bool], bets: list[int]
) -> None:
    shares = Allocation(ways, [EXPERTS] * len(ways))
    worth, resident = np.arange(float(EXPERTS))[None], np.zeros((1, EXPERTS), bool)
    for number, (at, expert, there) in enumerate(uses):
        resident[:, : EXPERTS // 2] = there
        shares.count(at % len(ways), int(resident.sum()), worth, resident, 0, expert)
        before = list(shares.ways)
        held = [own if full[at] else max(0, own - 1) for at, own in enumerate(before)]
        sets = range(number % 2, len(ways))
        giver = shares.move(sets, held, bets)
        moved = [own - old for own, old in zip(shares.ways, before, strict=True)]
        assert sum(moved) == 0
        assert sorted(filter(None, moved)) == ([] if giver is None else [-1, 1])
        if giver is not None:
            taker = moved.index(1)
            assert {giver, taker} <= set(sets)
            assert held[taker] == before[taker]
            assert shares.ways[giver] >= bets[giver]
        limits = zip(shares.ways, ways, strict=True)
        assert all(min(KEPT, least) <= own <= EXPERTS for own, least in limits)


def test_a_slot_goes_where_it_is_missed() -> None:
    shares = Allocation([4, 4], [EXPERTS, EXPERTS])
    worth, resident = np.arange(float(EXPERTS))[None], np.arange(EXPERTS)[None] >= EXPERTS - 4
    for _ in range(20):
        shares.count(0, 4, worth, resident, 0, EXPERTS - 5)  # the worthiest of the absent
    assert not any(shares.begin() for _ in range(EVERY - 1))
    assert shares.begin()
    assert shares.move([0, 1], [3, 4], [0, 0]) is None  # it is filling
    assert shares.move([0, 1], [4, 4], [0, 4]) is None  # bets have all of the other
    assert shares.move([0, 1], [4, 3], [0, 3]) == 1
    assert shares.ways == [5, 3]


def test_a_use_far_from_the_border_says_nothing() -> None:
    shares = Allocation([6], [EXPERTS])
    worth, resident = np.arange(float(EXPERTS))[None], np.arange(EXPERTS)[None] >= 6
    for expert in (0, 2, 9, 11):
        shares.count(0, 6, worth, resident, 0, expert)
    assert (shares.gain[0], shares.loss[0]) == (0, 0)
    for expert in (3, 5, 6, 8):
        shares.count(0, 6, worth, resident, 0, expert)
    assert (shares.gain[0], shares.loss[0]) == (2, 2)


@pytest.mark.usefixtures("kernels")
@settings(deadline=None, max_examples=12)
@given(
    seed=st.integers(0, 2**31),
    sets=st.sampled_from([(1, 1, 1, 1), (2, 2), (4,), (2, 1)]),
    name=st.sampled_from(["lru-shift", "lfu-shift", "heat-shift"]),
)
def test_the_tables_move_the_same(seed: int, sets: tuple[int, ...], name: str) -> None:
    """Layers 0 and 2 may be a pool of their own, as (2, 1) says: two sets and one."""
    layers, routing = 4, uneven(seed, 150, 4)
    if sets == (2, 1):
        pools = [SlotPool((0, 2), 12, (5, 5)), SlotPool((1, 3), 9, (7,))]
    else:
        pools = list(one_pool(18, [4 * n for n in sets], brain(name, layers)))
    tables = [kind(pools, 1, brain(name, layers)) for kind in (PlainSlots, CompiledSlots)]
    for token in range(routing.tokens):
        for layer in range(layers):
            for table in tables:
                serve(table, routing, token, layer)
            plain, compiled = tables
            assert plain.ways == compiled.ways
            assert plain.members(Role.RESIDENT) == compiled.members(Role.RESIDENT)
        key = ExpertKey(token % layers, token % EXPERTS)
        if not plain.present(key.layer)[key.expert]:
            assert plain.bet(key.layer, [key.expert]) == compiled.bet(key.layer, [key.expert])
        elif plain.slot_of(key) is not None:
            for table in tables:
                table.release(key)
    assert (plain.evictions, plain.bypassed) == (compiled.evictions, compiled.bypassed)
    np.testing.assert_array_equal(plain.hits, compiled.hits)
    start = 0
    for pool in pools:
        assert sum(plain.ways[start : start + len(pool.ways)]) == sum(pool.ways)
        start += len(pool.ways)


def hits(routing: Routing, cache: Cache, rule: Rule) -> np.ndarray:
    fast = replay(routing, cache, rule)
    slow = reference.replay(routing, cache, reference.worth_of(routing, rule))
    np.testing.assert_array_equal(fast.hits, slow.hits)
    np.testing.assert_array_equal(fast.entered, slow.entered)
    return fast.hits


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("kind", "admission"),
    [
        (Kind.LRU, Admission.ALWAYS),
        (Kind.LFU, Admission.ALWAYS),
        (Kind.HEAT, Admission.HOTTER),
        (Kind.LRU, Admission.WORTHIER),
    ],
)
def test_the_replay_moves_as_plain_python_and_gains(kind: Kind, admission: Admission) -> None:
    routing, ways = uneven(5, 400, 3), (6, 6, 6)
    fixed, shifting = (
        hits(routing, Cache(ways, admission=admission, shifts=shifts), Rule(kind))
        for shifts in (False, True)
    )
    assert shifting.mean() > fixed.mean() + 0.02
    pool = Cache((18,), True, admission, shifts=True)  # has nobody to share with
    np.testing.assert_array_equal(
        hits(routing, pool, Rule(kind)), hits(routing, Cache((18,), True, admission), Rule(kind))
    )


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", [PlainSlots, CompiledSlots])
def test_who_is_needed_now_is_not_moved_out(kind: type[PlainSlots] | type[CompiledSlots]) -> None:
    """A set shrinks between steps: what the step was given stays until its end."""
    routing = uneven(5, 400, 3)
    policy = brain("lru-shift", 3)
    table = kind(one_pool(19, (6, 6, 6), policy), 0, policy)
    moved = 0
    for token in range(routing.tokens):
        for layer in range(3):
            before = table.ways
            ids = routing.ids[token, layer][None].astype(np.int64)
            step = Routed(layer, ids, np.ones((1, TOP), np.float32), (Segment(0, 0, 1, 0),), token)
            table.record(step)
            moved += table.ways != before
            assert layer == 0 or table.ways == before
            table.ask(step)
            keys = [ExpertKey(layer, expert) for expert in set(ids[0].tolist())]
            assert all(table.slot_of(key) is not None for key in keys)
            table.end_transit()
            sizes = [
                len([k for k in table.members(Role.RESIDENT) if k.layer == n]) for n in range(3)
            ]
            assert all(size <= ways for size, ways in zip(sizes, table.ways, strict=True))
    assert moved >= 2
    assert table.ways[0] < 6 < table.ways[2]
    assert table.evictions


def test_policies_that_do_not_shift_are_left_alone() -> None:
    for policy in (LeastRecentlyUsed(1, EXPERTS), LeastOftenUsed(1, EXPERTS)):
        assert not policy.shifts
    assert brain("heat-shift", 1).shifts
