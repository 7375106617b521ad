"""The slot table: its invariants under any order of calls, and who goes when room is short."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from miractl.native.places import SlotPool
from miractl.native.replay import Admission
from miractl.policy.brain import Brain
from miractl.policy.eviction import (
    Anybody,
    EvictionPolicy,
    HeatEviction,
    LeastOftenUsed,
    LeastRecentlyUsed,
    Static,
)
from miractl.policy.heat import HeatTable
from miractl.policy.keys import ExpertKey
from miractl.policy.residency import Place, Residency, Role
from miractl.policy.routing import Routed, Segment
from miractl.policy.slots import one_pool

LAYERS, EXPERTS = 3, 4
KEYS = st.builds(ExpertKey, st.integers(0, LAYERS - 1), st.integers(0, EXPERTS - 1))


def routed(layer: int, *experts: int) -> Routed:
    """A step of one token that uses these experts."""
    ids = np.array([experts], np.int64)
    return Routed(layer, ids, np.ones(ids.shape, np.float32), (Segment(0, 0, 1, 0),), 0)


def brain(policy: EvictionPolicy, heat: HeatTable | None = None) -> Brain:
    layers, experts = policy.worth.shape
    return Brain(policy, heat or HeatTable(layers, experts, 1, clock=lambda: 0.0))


def keys(layer: int, *experts: int) -> list[ExpertKey]:
    return [ExpertKey(layer, expert) for expert in experts]


def heat_eviction() -> Brain:
    heat = HeatTable(LAYERS, EXPERTS, 1, clock=lambda: 0.0, threshold=0.15)
    return Brain(HeatEviction(heat, LAYERS, EXPERTS), heat)


POLICIES = {
    "lru": lambda: brain(LeastRecentlyUsed(LAYERS, EXPERTS)),
    "lfu": lambda: brain(LeastOftenUsed(LAYERS, EXPERTS)),
    "random": lambda: brain(Anybody(LAYERS, EXPERTS)),
    "heat": heat_eviction,
    "static": lambda: brain(Static(np.arange(12.0).reshape(LAYERS, EXPERTS) % 5)),
    "worthier": lambda: worthier(LAYERS),
}


def worthier(layers: int) -> Brain:
    """Recency by which newcomers compete with everybody, also with whom the step needs."""
    policy = LeastRecentlyUsed(layers, EXPERTS)
    policy.admission = Admission.WORTHIER
    return brain(policy)


@st.composite
def pools(draw: st.DrawFn) -> list[SlotPool]:
    """One, or two that share the layers, each with a reserve."""
    homes = draw(st.lists(st.integers(0, 1), min_size=LAYERS, max_size=LAYERS))
    found = []
    for pool in sorted(set(homes)):
        layers = tuple(at for at in range(LAYERS) if homes[at] == pool)
        ways = draw(st.lists(st.integers(0, 4), min_size=1, max_size=len(layers)))
        found.append(SlotPool(layers, sum(ways) + draw(st.integers(1, 4)), tuple(ways)))
    return found


class ResidencyMachine(RuleBasedStateMachine):
    """Any sequence of demands, bets, adoptions and releases."""

    @initialize(
        pools=pools(),
        staging=st.integers(0, 3),
        policy=st.sampled_from(sorted(POLICIES)),
    )
    def start(self, pools: list[SlotPool], staging: int, policy: str) -> None:
        staging = min(staging, sum(sum(pool.ways) for pool in pools))
        self.table = Residency(pools, staging, POLICIES[policy]())

    @rule(
        layer=st.integers(0, LAYERS - 1),
        experts=st.sets(st.integers(0, EXPERTS - 1), min_size=1),
        most=st.integers(1, 4),
        bets=st.lists(KEYS, max_size=3),
    )
    def step(self, layer: int, experts: set[int], most: int, bets: list[ExpertKey]) -> None:
        """Until all are served; `most` is how many that wait a wave asks for at a time.

        There are `bets` while each wave is under way.
        """
        table = self.table
        table.record(routed(layer, *experts))
        needed = set(keys(layer, *experts))
        while needed:
            for key in table.members(Role.STAGED):  # as bets give way to demands
                if key not in needed:
                    table.release(key)
            served = {key: table.slot(key) for key in needed if table.has(key, Role.RESIDENT)}
            for key in sorted(needed - served.keys()):
                place = (
                    Place(table.adopt(key), Role.RESIDENT)
                    if table.has(key, Role.STAGED)
                    else table.demand(key, needed)
                )
                if place is not None:
                    served[key] = place.slot
                    assert place.evicted is None or table.slot(place.evicted) != place.slot
                if len(served) >= most:
                    break
            assert served
            for bet in bets:
                if table.slot(bet) is None and bet not in needed:
                    table.stage(bet, needed)
            # Whoever is served keeps its slot until the wave ends, evicted or not.
            assert all(table.slot(key) == slot for key, slot in served.items())
            self.holds()
            for key in table.members(Role.TRANSIT):
                table.release(key)
            needed -= served.keys()

    @rule(key=KEYS)
    def bet(self, key: ExpertKey) -> None:
        if self.table.slot(key) is None:
            self.table.stage(key, ())

    @rule(key=KEYS)
    def drop(self, key: ExpertKey) -> None:
        if self.table.slot(key) is not None:
            self.table.release(key)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "table"):
            return
        table = self.table
        members = {role: table.members(role) for role in Role}
        everyone = [key for role in Role for key in members[role]]
        slots = [table.slot(key) for key in everyone]
        assert len(set(everyone)) == len(everyone) == len(table)
        assert len(set(slots)) == len(slots)
        assert all(slot is not None and 0 <= slot < table.slots for slot in slots)
        assert len(members[Role.STAGED]) <= table.staging_limit
        for layer in range(LAYERS):
            own = [k for k in members[Role.RESIDENT] if k.layer == layer]
            worth = [float(table.policy.worth[key]) for key in own]
            assert table._standing._least[layer] == min(worth, default=np.inf)
        start = 0
        for pool, free in zip(table.pools, table.free, strict=True):
            mine = {role: [k for k in members[role] if k.layer in pool.layers] for role in Role}
            assert len(mine[Role.TRANSIT]) <= pool.reserve
            held = [table.slot(key) for role in Role for key in mine[role]]
            assert all(slot in range(start, start + pool.slots) for slot in held)
            assert len(held) + free == pool.slots
            for at, ways in enumerate(pool.ways):
                layers = pool.layers[at :: len(pool.ways)]
                placed = [*mine[Role.RESIDENT], *mine[Role.STAGED]]
                assert sum(key.layer in layers for key in placed) <= ways
            start += pool.slots


ResidencyMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestResidencyMachine = ResidencyMachine.TestCase


def plain(slots: int, ways: Sequence[int], staging: int, policy: Brain) -> Residency:
    """A table whose layers all share the slots."""
    return Residency(one_pool(slots, ways, policy), staging, policy)


def full_set(policy: Brain, staging: int = 0) -> Residency:
    """One layer's set of two ways, holding experts 0 and 1; one slot of reserve."""
    table = plain(3, [2], staging, policy)
    for key in keys(0, 0, 1):
        table.record(routed(0, key.expert))
        assert table.demand(key, {key}) is not None
    return table


def test_the_least_recently_used_goes_first() -> None:
    table = full_set(brain(LeastRecentlyUsed(1, EXPERTS)))
    table.record(routed(0, 0))
    place = table.demand(ExpertKey(0, 2), {ExpertKey(0, 2)})
    assert place is not None
    assert place.evicted == ExpertKey(0, 1)


def test_what_the_step_needs_is_not_evicted_and_the_newcomer_passes_through() -> None:
    table = full_set(brain(LeastRecentlyUsed(1, EXPERTS)))
    needed = set(keys(0, 0, 1, 2))
    place = table.demand(ExpertKey(0, 2), needed)
    assert place is not None
    assert (place.role, place.evicted) == (Role.TRANSIT, None)
    assert table.demand(ExpertKey(0, 3), {*needed, ExpertKey(0, 3)}) is None  # next wave


def heat_policy(threshold: float) -> Brain:
    heat = HeatTable(1, EXPERTS, 1, clock=lambda: 0.0, threshold=threshold)
    return Brain(HeatEviction(heat, 1, EXPERTS), heat)


def test_residents_below_the_threshold_go_first() -> None:
    """Expert 0 is hot and used longest ago: recency would evict it, heat keeps it."""
    policy = heat_policy(threshold=0.25)
    for _ in range(4):
        policy.record(routed(0, 0))
    table = full_set(policy)
    place = table.demand(ExpertKey(0, 2), {ExpertKey(0, 2)})
    assert place is not None
    assert place.evicted == ExpertKey(0, 1)


def test_a_cold_newcomer_displaces_nobody_who_is_hot() -> None:
    policy = heat_policy(threshold=0.25)
    for _ in range(4):
        policy.record(routed(0, 0))
        policy.record(routed(0, 1))
    table = full_set(policy)
    table.record(routed(0, 2))
    place = table.demand(ExpertKey(0, 2), {ExpertKey(0, 2)})
    assert place is not None
    assert (place.role, place.evicted) == (Role.TRANSIT, None)


def test_a_hot_newcomer_displaces_the_least_recent_of_the_hot() -> None:
    policy = heat_policy(threshold=0.05)
    table = full_set(policy)
    table.record(routed(0, 0))
    table.record(routed(0, 2))
    place = table.demand(ExpertKey(0, 2), {ExpertKey(0, 2)})
    assert place is not None
    assert (place.role, place.evicted) == (Role.RESIDENT, ExpertKey(0, 1))


def test_an_adopted_bet_keeps_its_slot() -> None:
    table = plain(3, [2], 2, brain(LeastRecentlyUsed(1, EXPERTS)))
    staged = table.stage(ExpertKey(0, 3), ())
    assert staged is not None
    assert table.adopt(ExpertKey(0, 3)) == staged.slot
    assert table.members(Role.STAGED) == frozenset()
    assert table.members(Role.RESIDENT) == {ExpertKey(0, 3)}


def test_a_bet_takes_the_place_of_the_least_worthy_that_the_step_can_do_without() -> None:
    table = full_set(brain(LeastRecentlyUsed(1, EXPERTS)), staging=2)
    table.record(routed(0, 0))
    place = table.stage(ExpertKey(0, 2), set(keys(0, 1)))
    assert place is not None
    assert (place.role, place.evicted) == (Role.STAGED, ExpertKey(0, 0))
    assert table.stage(ExpertKey(0, 3), set(keys(0, 1))) is None
    assert table.members(Role.RESIDENT) == {ExpertKey(0, 1)}


def test_in_a_pool_the_least_worthy_of_all_layers_goes() -> None:
    table = plain(4, [3], 0, brain(LeastRecentlyUsed(LAYERS, EXPERTS)))
    for layer in (1, 0, 2):
        table.record(routed(layer, 0))
        assert table.demand(ExpertKey(layer, 0), set(keys(layer, 0))) is not None
    table.record(routed(2, 1))
    place = table.demand(ExpertKey(2, 1), set(keys(2, 1)))
    assert place is not None
    assert place.evicted == ExpertKey(1, 0)


def test_who_is_worth_less_and_needed_gives_up_its_place_but_not_its_slot() -> None:
    table = plain(3, [1], 0, worthier(1))
    table.record(routed(0, 0))
    first = table.demand(ExpertKey(0, 0), set(keys(0, 0)))
    table.record(routed(0, 0, 1))
    needed = set(keys(0, 0, 1))
    place = table.demand(ExpertKey(0, 1), needed)
    assert first is not None
    assert place is not None
    assert (place.role, place.evicted) == (Role.RESIDENT, ExpertKey(0, 0))
    assert place.slot != first.slot == table.slot(ExpertKey(0, 0))
    assert table.members(Role.TRANSIT) == {ExpertKey(0, 0)}


def test_a_static_worth_lets_others_pass_through() -> None:
    table = plain(3, [1], 0, brain(Static(np.array([[3.0, 2.0, 1.0, 0.0]]))))
    roles = []
    for expert in (1, 2, 0, 3):
        table.record(routed(0, expert))
        place = table.demand(ExpertKey(0, expert), set(keys(0, expert)))
        assert place is not None
        roles.append(place.role)
        for key in table.members(Role.TRANSIT):
            table.release(key)
    assert roles == [Role.RESIDENT, Role.TRANSIT, Role.RESIDENT, Role.TRANSIT]


@pytest.mark.parametrize(
    ("slots", "ways", "staging"), [(2, [3], 0), (3, [3], 1), (4, [3], 4), (5, [3], -1)]
)
def test_impossible_divisions_are_refused(slots: int, ways: list[int], staging: int) -> None:
    with pytest.raises(ValueError, match="but expected"):
        plain(slots, ways, staging, brain(LeastRecentlyUsed(1, EXPERTS)))
