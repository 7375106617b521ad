"""Bets on a slot table: settled and placed alike in C and in Python, whatever happens to them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.native.ahead import Ahead
from miractl.native.bets import Bets, BetsState
from miractl.native.places import SlotPool
from miractl.native.residency import State, Status
from miractl.policy.brain import Brain
from miractl.policy.eviction import LeastRecentlyUsed
from miractl.policy.heat import HeatTable
from miractl.policy.plain_slots import PlainSlots
from miractl.policy.routing import Routed, Segment
from miractl.policy.slots import CompiledSlots, SlotTable, one_pool
from miractl.simulate.betting import ReferenceAhead, ReferenceBets
from tests.policy.test_slot_tables import same

pytestmark = pytest.mark.usefixtures("kernels")
LAYERS, EXPERTS, TRANSFER = 3, 4, 0.3
KNOWN = ("demand", "bins", "guess", "proposal", "hidden", "risk")


def brain() -> Brain:
    heat = HeatTable(LAYERS, EXPERTS, 1, clock=lambda: 1.0)
    return Brain(LeastRecentlyUsed(LAYERS, EXPERTS), heat)


def carry_on(table: SlotTable, fates: np.ndarray, now: float) -> None:
    """Transfers of bets go on: `fates` [experts] says whose, and which pause, end or fail."""
    progress = table.progress
    for key in table.oldest():
        slot, fate = table.slot_of(key), fates[key.expert]
        state = progress.state[slot]
        if state == State.QUEUED and fate > 0.3:
            progress.began[slot], progress.state[slot] = now - fate / 2, State.RUNNING
        elif state == State.PAUSED and fate > 0.8:
            progress.began[slot] += now - progress.finished[slot]
            progress.state[slot] = State.RUNNING
        elif state == State.RUNNING and fate > 0.5:
            progress.finished[slot] = progress.began[slot] + fate
            progress.moved[slot] = int(100 * fate) if fate > 0.55 else 0
            ends = State.PAUSED, State.CANCELLED, State.DONE, State.FAILED
            progress.state[slot] = ends[int(8 * (fate - 0.5))]


def serve(table: SlotTable) -> list[object]:
    """All experts of a layer that was asked for, in waves; the newest bets make way."""
    told: list[object] = []
    while True:
        for expert in table.called:
            table.call_in(expert)
        status = table.place()
        while status:
            table.drop(table.oldest()[-1])
            status = table.place()
        told.append((table.here, table.arrived, table.placed))
        table.end_transit()
        if not table.waits:
            return told
        table.ask_again()


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 2**31),
    ways=st.integers(1, 4),
    staging=st.integers(1, 4),
    compute=st.sampled_from((0.0, 0.1, 0.5)),
    chunks=st.sampled_from((1, 3)),
)
def test_c_and_python_settle_and_place_alike(
    seed: int, ways: int, staging: int, compute: float, chunks: int
) -> None:
    rng = np.random.default_rng(seed)
    even, odd = tuple(range(0, LAYERS, 2)), tuple(range(1, LAYERS, 2))
    staging = min(staging, ways)
    division: tuple[SlotPool, ...] = one_pool(LAYERS * ways + 2, (ways,) * LAYERS, brain())
    if seed % 2:  # two pools
        division = tuple(SlotPool(own, ways + 1, (ways,)) for own in (even, odd))
    plain = PlainSlots(division, staging, brain())
    compiled = CompiledSlots(division, staging, brain())
    sizes = LAYERS, EXPERTS, staging
    states = [BetsState(*sizes, classes=4, chunks=chunks) for _ in range(2)]
    slow = ReferenceAhead(ReferenceBets(states[0]), plain, 2, 1.0, began=0.0)
    fast = Ahead(Bets(states[1]), compiled, 2, 1.0, began=0.0)
    for number in range(60):
        layer, now = number % LAYERS, float(number)
        ids = rng.integers(0, EXPERTS, (1, int(rng.integers(1, 4))))
        prompt, demands = bool(rng.integers(2)), int(rng.integers(2))
        segments = () if prompt else (Segment(0, 0, 1, 0),)
        step = Routed(layer, ids, np.ones(ids.shape, np.float32), segments, number)
        fates, transfer = rng.random(EXPERTS), TRANSFER if number > 5 else 0.0
        computed = int(rng.integers(3))
        known = now, 0.1 * number, transfer, computed * compute, computed
        for table in (plain, compiled):
            carry_on(table, fates, now)
        plain.record(step, now)
        unwanted = slow.settle(step, known)
        status = compiled.decide(step, known)
        assert (status == Status.UNWANTED) == bool(unwanted)
        if unwanted:
            assert unwanted == compiled.unwanted
            status = compiled.ask(step)
        assert plain.ask(step) == (Status.PLACED if status == Status.HERE else status)
        assert status != Status.HERE or len(plain.here) == plain.different
        assert slow.prize == fast.times.prize
        assert serve(plain) == serve(compiled)
        for one in (slow, fast):
            one.begin(now, transfer, demands, 1)
        for ahead in (1, 2):
            guesses = rng.random(EXPERTS)
            assert slow.place(ahead, guesses) == fast.place(ahead, guesses)
        same(plain, compiled)
    assert fast.bets.balance == slow.bets.state.balance
    for name in KNOWN:
        one, other = getattr(fast.bets.state, name), getattr(slow.bets.state, name)
        np.testing.assert_array_equal(one, other, err_msg=name)
