"""The slot table in C decides as the one in Python, whatever it is asked."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.native.residency import Role, SlotPool, Status
from miractl.policy.eviction import Brain
from miractl.policy.keys import ExpertKey
from miractl.policy.slots import CompiledSlots, PlainSlots, SlotTable, one_pool
from tests.policy.test_residency import EXPERTS, LAYERS, POLICIES, pools, routed

pytestmark = pytest.mark.usefixtures("kernels")
Choose = Callable[[int], bool]
Kind = Callable[[Sequence[SlotPool], int, Brain], SlotTable]


def same(one: SlotTable, other: SlotTable) -> None:
    """Everything that can be asked is alike."""
    assert len(one) == len(other)
    assert (one.free, one.evictions, one.bypassed) == (other.free, other.evictions, other.bypassed)
    assert one.waits == other.waits
    np.testing.assert_array_equal(one.hits, other.hits)
    np.testing.assert_array_equal(one.misses, other.misses)
    for role in Role:
        assert one.members(role) == other.members(role)
    for layer in range(LAYERS):
        np.testing.assert_array_equal(one.present(layer) > 0, other.present(layer) > 0)


def step(table: SlotTable, layer: int, ids: np.ndarray, choose: Choose) -> list[object]:
    """As the cache takes one; `choose` says which bets failed and whether one may be dropped."""
    asked = routed(layer, *ids[0].tolist())
    table.record(asked)
    told: list[object] = []
    status = table.ask(asked)
    while True:
        told.append((status, table.here, table.called))
        for expert in table.called if status == Status.CALLED else ():
            if choose(expert):
                table.fail(expert)
            else:
                told.append(table.call_in(expert))
        status = table.place()
        while status == Status.SHORT:
            staged = sorted(table.members(Role.STAGED))
            drop = choose(len(staged))
            if drop:
                table.release(staged[0])
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
    staging = min(staging, sum(pool.reserve - 1 for pool in division))

    def table(kind: Kind) -> SlotTable:
        return kind(division, staging, POLICIES[policy]())

    plain, compiled = table(PlainSlots), table(CompiledSlots)
    rng = np.random.default_rng(seed)
    for number in range(30):
        layer, count = int(rng.integers(LAYERS)), int(rng.integers(1, EXPERTS + 1))
        ids = rng.permutation(EXPERTS)[None, :count]

        def choose(about: int, shift: int = number + seed) -> bool:
            return (about + shift) % 3 == 0

        assert step(plain, layer, ids, choose) == step(compiled, layer, ids, choose)
        for key in (ExpertKey(int(rng.integers(LAYERS)), e) for e in range(EXPERTS)):
            if not plain.present(key.layer)[key.expert]:
                assert plain.bet(key) == compiled.bet(key)
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
        kind(one_pool(4, [3], policy), 1, policy)
    with pytest.raises(ValueError, match="each of 3 layers once"):
        kind(one_pool(4, [3], policy) * 2, 0, policy)
