"""Bets on a slot table: settled and placed alike in C and in Python, whatever happens to them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.native.bets import Bets, BetsState, Moment
from miractl.native.residency import State
from miractl.policy.eviction import Brain, LeastRecentlyUsed
from miractl.policy.heat import HeatTable
from miractl.policy.routing import Routed, Segment
from miractl.policy.slots import CompiledSlots, PlainSlots, SlotTable
from miractl.simulate.betting import ReferenceBets
from tests.policy.test_slot_tables import same

pytestmark = pytest.mark.usefixtures("kernels")
LAYERS, EXPERTS, TRANSFER, COMPUTE = 3, 4, 0.3, 1.0
OUT = ("missing", "unwanted", "gained", "lost")


def brain() -> Brain:
    heat = HeatTable(LAYERS, EXPERTS, 1, clock=lambda: 1.0)
    return Brain(LeastRecentlyUsed(LAYERS, EXPERTS), heat)


def carry_on(table: SlotTable, fates: np.ndarray, now: float) -> None:
    """Transfers of bets go on: `fates` [experts] says whose, and which of them fail."""
    progress = table.progress
    for key in table.oldest():
        slot, fate = table.slot_of(key), fates[key.expert]
        state = progress.state[slot]
        if state == State.QUEUED and fate > 0.3:
            progress.began[slot], progress.state[slot] = now - fate / 2, State.RUNNING
        elif state == State.RUNNING and fate > 0.5:
            progress.finished[slot] = progress.began[slot] + fate
            progress.state[slot] = State.FAILED if fate > 0.9 else State.DONE


def serve(table: SlotTable, step: Routed) -> list[object]:
    """All experts of a layer, in waves; the newest bets make way."""
    status = table.ask(step)
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
@given(seed=st.integers(0, 2**31), ways=st.integers(0, 3), staging=st.integers(1, 4))
def test_c_and_python_settle_and_place_alike(seed: int, ways: int, staging: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = LAYERS * ways + staging + 2, (ways,) * LAYERS, staging
    plain, compiled = PlainSlots(*sizes, brain()), CompiledSlots(*sizes, brain())
    slow, fast = (kind(BetsState(LAYERS, EXPERTS, staging)) for kind in (ReferenceBets, Bets))
    for number in range(60):
        layer, now = number % LAYERS, float(number)
        ids = rng.integers(0, EXPERTS, (1, int(rng.integers(1, 4))))
        step = Routed(layer, ids, np.ones(ids.shape, np.float32), (Segment(0, 0, 1, 0),), number)
        fates = rng.random(EXPERTS)
        for table in (plain, compiled):
            table.record(step)
            carry_on(table, fates, now)
        transfer = TRANSFER if number > 5 else 0.0
        one = slow.settle(plain, layer, ids, now, transfer)
        other = fast.settle(compiled, layer, step.addresses[0], ids.size, now, transfer)
        assert [getattr(one, name) for name in OUT] == [getattr(other, name) for name in OUT]
        assert plain.unwanted(one.unwanted) == compiled.unwanted(other.unwanted)
        assert serve(plain, step) == serve(compiled, step)
        guesses, ahead = rng.random(EXPERTS), (layer + 1) % LAYERS
        at = [
            Moment(layer=ahead, ahead=1, elapsed=now, gate=1, transfer=transfer, confidence=1)
            for _ in range(2)
        ]
        assert slow.place(plain, at[0], guesses) == fast.place(compiled, at[1], guesses)
        assert at[0].room == at[1].room
        same(plain, compiled)
    assert fast.balance == slow.state.balance
    assert plain.bets.issued > 0
