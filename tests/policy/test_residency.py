"""The slot table: its invariants under any order of calls, and who goes when room is short."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from miractl.policy.eviction import HeatEviction, LeastRecentlyUsed
from miractl.policy.heat import HeatTable
from miractl.policy.keys import ExpertKey
from miractl.policy.residency import Residency, Role

LAYERS, EXPERTS = 3, 4
KEYS = st.builds(ExpertKey, st.integers(0, LAYERS - 1), st.integers(0, EXPERTS - 1))


def use(policy: LeastRecentlyUsed | HeatEviction, layer: int, *experts: int) -> None:
    policy.record(layer, np.bincount(experts, minlength=EXPERTS), len(experts))


def keys(layer: int, *experts: int) -> list[ExpertKey]:
    return [ExpertKey(layer, expert) for expert in experts]


class ResidencyMachine(RuleBasedStateMachine):
    """Any sequence of demands, bets, adoptions and releases."""

    @initialize(
        ways=st.lists(st.integers(1, 4), min_size=1, max_size=LAYERS),
        reserve=st.integers(1, 4),
        staging=st.integers(0, 3),
    )
    def start(self, ways: Sequence[int], reserve: int, staging: int) -> None:
        staging = min(staging, reserve - 1)
        policy = LeastRecentlyUsed(LAYERS, EXPERTS)
        self.table = Residency(sum(ways) + reserve, ways, staging, policy)
        self.reserve = reserve

    @rule(layer=st.integers(0, LAYERS - 1), experts=st.sets(st.integers(0, EXPERTS - 1)))
    def step(self, layer: int, experts: set[int]) -> None:
        needed = set(keys(layer, *experts))
        use(self.table.policy, layer, *experts)
        for key in needed:
            if self.table.has(key, Role.STAGED):
                self.table.adopt(key, needed)
            elif self.table.slot(key) is None:
                place = self.table.demand(key, needed)
                assert place is None or place.evicted not in needed
        for key in needed:
            if self.table.has(key, Role.TRANSIT):
                self.table.release(key)

    @rule(key=KEYS)
    def bet(self, key: ExpertKey) -> None:
        if self.table.slot(key) is None:
            self.table.stage(key)

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
        assert len(members[Role.STAGED]) + len(members[Role.TRANSIT]) <= self.reserve
        for index, ways in enumerate(table.ways):
            own = [k for k in members[Role.RESIDENT] if k.layer % len(table.ways) == index]
            assert len(own) <= ways


ResidencyMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestResidencyMachine = ResidencyMachine.TestCase


def full_set(policy: LeastRecentlyUsed | HeatEviction) -> Residency:
    """One layer's set of two ways, holding experts 0 and 1; one slot of reserve."""
    table = Residency(3, [2], 0, policy)
    for key in keys(0, 0, 1):
        use(policy, 0, key.expert)
        assert table.demand(key, {key}) is not None
    return table


def test_the_least_recently_used_goes_first() -> None:
    policy = LeastRecentlyUsed(1, EXPERTS)
    table = full_set(policy)
    use(policy, 0, 0)
    place = table.demand(ExpertKey(0, 2), {ExpertKey(0, 2)})
    assert place is not None
    assert place.evicted == ExpertKey(0, 1)


def test_what_the_step_needs_is_not_evicted_and_the_newcomer_passes_through() -> None:
    table = full_set(LeastRecentlyUsed(1, EXPERTS))
    needed = set(keys(0, 0, 1, 2))
    place = table.demand(ExpertKey(0, 2), needed)
    assert place is not None
    assert (place.role, place.evicted) == (Role.TRANSIT, None)
    assert table.demand(ExpertKey(0, 3), {*needed, ExpertKey(0, 3)}) is None  # next wave


def heat_policy(threshold: float) -> HeatEviction:
    heat = HeatTable(1, EXPERTS, 1, clock=lambda: 0.0, threshold=threshold)
    return HeatEviction(heat, 1, EXPERTS)


def test_residents_below_the_threshold_go_first() -> None:
    """Expert 0 is hot and used longest ago: recency would evict it, heat keeps it."""
    policy = heat_policy(threshold=0.25)
    for _ in range(4):
        use(policy, 0, 0)
    table = full_set(policy)
    place = table.demand(ExpertKey(0, 2), {ExpertKey(0, 2)})
    assert place is not None
    assert place.evicted == ExpertKey(0, 1)


def test_a_cold_newcomer_displaces_nobody_who_is_hot() -> None:
    policy = heat_policy(threshold=0.25)
    for _ in range(4):
        use(policy, 0, 0)
        use(policy, 0, 1)
    table = full_set(policy)
    use(policy, 0, 2)
    place = table.demand(ExpertKey(0, 2), {ExpertKey(0, 2)})
    assert place is not None
    assert (place.role, place.evicted) == (Role.TRANSIT, None)


def test_a_hot_newcomer_displaces_the_least_recent_of_the_hot() -> None:
    policy = heat_policy(threshold=0.05)
    table = full_set(policy)
    use(policy, 0, 0)
    use(policy, 0, 2)
    place = table.demand(ExpertKey(0, 2), {ExpertKey(0, 2)})
    assert place is not None
    assert (place.role, place.evicted) == (Role.RESIDENT, ExpertKey(0, 1))


def test_an_adopted_bet_keeps_its_slot() -> None:
    table = Residency(5, [2], 2, LeastRecentlyUsed(1, EXPERTS))
    staged = table.stage(ExpertKey(0, 3))
    assert staged is not None
    place = table.adopt(ExpertKey(0, 3), {ExpertKey(0, 3)})
    assert (place.slot, place.role) == (staged.slot, Role.RESIDENT)
    assert table.members(Role.STAGED) == frozenset()


@pytest.mark.parametrize(("slots", "ways", "staging"), [(2, [3], 0), (4, [3], 1), (5, [3], -1)])
def test_impossible_divisions_are_refused(slots: int, ways: list[int], staging: int) -> None:
    with pytest.raises(ValueError, match="but expected"):
        Residency(slots, ways, staging, LeastRecentlyUsed(1, EXPERTS))
