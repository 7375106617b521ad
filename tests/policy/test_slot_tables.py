"""The slot table in C decides as the one in Python, whatever it is asked."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.native.places import SlotPool
from miractl.native.residency import Role, State, Status
from miractl.policy.brain import Brain
from miractl.policy.plain_slots import PlainSlots
from miractl.policy.slots import CompiledSlots, SlotTable, one_pool
from tests.policy.test_residency import EXPERTS, LAYERS, POLICIES, pools, routed

pytestmark = pytest.mark.usefixtures("kernels")
Choose = Callable[[int], State]
Kind = Callable[[Sequence[SlotPool], int, Brain], SlotTable]


def same(one: SlotTable, other: SlotTable) -> None:
    """Everything that can be asked is alike."""
    assert len(one) == len(other)
    assert (one.free, one.evictions, one.bypassed) == (other.free, other.evictions, other.bypassed)
    assert one.waits == other.waits
    assert (one.bets, one.oldest()) == (other.bets, other.oldest())
    np.testing.assert_array_equal(one.in_vain, other.in_vain)
    assert (one.staged, one.room_for_bets) == (other.staged, other.room_for_bets)
    for mine, yours in zip(one.policy.heat.decaying, other.policy.heat.decaying, strict=True):
        np.testing.assert_array_equal(mine, yours)
    np.testing.assert_array_equal(one.hits, other.hits)
    np.testing.assert_array_equal(one.misses, other.misses)
    np.testing.assert_array_equal(one.prefetched, other.prefetched)
    np.testing.assert_array_equal(one.prefetch_used, other.prefetch_used)
    for role in Role:
        assert one.members(role) == other.members(role)
    for layer in range(LAYERS):
        np.testing.assert_array_equal(one.present(layer) > 0, other.present(layer) > 0)


def step(table: SlotTable, layer: int, ids: np.ndarray, choose: Choose) -> list[object]:
    """As the cache takes one; `choose` says how far bets are and whether one may be dropped."""
    for key in table.oldest():
        slot = table.slot_of(key)
        table.progress.state[slot] = max(table.progress.state[slot], choose(key.expert))
        table.progress.moved[slot] = max(0, choose(key.expert) - State.RUNNING)
    asked = routed(layer, *ids[0].tolist())
    table.record(asked)
    told: list[object] = []
    status = table.ask(asked)
    while True:
        told.append((status, table.here, table.arrived, table.called))
        if status == Status.CALLED:
            for expert in table.called:
                table.call_in(expert)
            status = table.place()
        while status == Status.SHORT:
            drop = table.staged > 0 and choose(table.staged) > State.RUNNING
            if drop:
                table.drop(table.oldest()[0])
            status = table.place(skip=not drop)
        told += [table.placed, [sorted(table.members(role)) for role in Role]]
        table.end_transit()
        if not table.waits:
            return told
        status = table.ask_again()


@settings(deadline=None, max_examples=150)
@given(
    division=pools(),
    staging=st.integers(0, 3),
    policy=st.sampled_from(sorted(POLICIES)),
    seed=st.integers(0, 2**31),
)
def test_the_same_decisions(division: list[SlotPool], staging: int, policy: str, seed: int) -> None:
    staging = min(staging, sum(sum(pool.ways) for pool in division))

    def table(kind: Kind) -> SlotTable:
        return kind(division, staging, POLICIES[policy]())

    plain, compiled = table(PlainSlots), table(CompiledSlots)
    rng = np.random.default_rng(seed)
    for number in range(30):
        layer, count = int(rng.integers(LAYERS)), int(rng.integers(1, EXPERTS + 1))
        ids = rng.permutation(EXPERTS)[None, :count]

        def choose(about: int, shift: int = number + seed) -> State:
            return State((about + shift) % len(State))

        assert step(plain, layer, ids, choose) == step(compiled, layer, ids, choose)
        bet_on = int(rng.integers(LAYERS))
        absent = np.flatnonzero(plain.present(bet_on) == 0).tolist()
        assert plain.bet(bet_on, absent) == compiled.bet(bet_on, absent)
        same(plain, compiled)


@pytest.mark.parametrize("kind", [PlainSlots, CompiledSlots])
def test_what_is_not_there_is_refused(kind: Kind) -> None:
    policy = POLICIES["lru"]()
    table = kind(one_pool(3, [2], policy), 0, policy)
    for expert in (-1, EXPERTS):
        with pytest.raises(ValueError, match="Got ids"):
            table.ask(routed(0, 0, expert))
    assert table.hits.sum() + table.misses.sum() == len(table) == 0
    with pytest.raises(ValueError, match="but expected"):
        kind(one_pool(2, [3], policy), 0, policy)
    with pytest.raises(ValueError, match="but expected"):
        kind(one_pool(4, [3], policy), 4, policy)
    with pytest.raises(ValueError, match="each of 3 layers once"):
        kind(one_pool(4, [3], policy) * 2, 0, policy)
