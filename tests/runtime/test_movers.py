"""Copies to a GPU: their order, and what waits for what, on a device whose copies take time."""

import pytest
import torch

from miractl.errors import MiractlError
from miractl.policy.keys import ExpertKey
from miractl.runtime.arena import SlotArena
from miractl.runtime.movers import CudaMover
from miractl.runtime.transfer import TransferQueue
from tests.runtime.fake_device import FakeDevice

SHAPES = {"gate_up_proj": (4, 8), "down_proj": (8, 2)}
EXPERT = 4 * (32 + 16)  # bytes
RATE = 100.0  # an expert takes 1.92 s


class Experts:
    """Experts of float32 whose every number tells which one it is."""

    fails = False

    def close(self) -> None:
        pass

    def stored_bytes(self, key: ExpertKey) -> int:
        return EXPERT

    def read(self, key: ExpertKey, slot: dict[str, torch.Tensor]) -> int:
        if self.fails:
            raise MiractlError("the disk is gone")
        for number, view in enumerate(slot.values()):
            view.copy_(torch.arange(view.numel()).view(view.shape) + 1000 * key.expert + number)
        return EXPERT


class Bench:
    """A mover of so much pinned memory, and its slots."""

    def __init__(self, ring: int) -> None:
        self.device, self.experts = FakeDevice(RATE), Experts()
        self.arena = SlotArena([(4, SHAPES)], torch.float32, torch.device("cpu"))
        self.mover = CudaMover(self.experts, self.arena, ring, self.device)

    def holds(self, slot: int, expert: int) -> bool:
        wanted = {name: torch.empty(shape) for name, shape in SHAPES.items()}
        Experts().read(ExpertKey(0, expert), wanted)
        return all(torch.equal(self.arena[slot][name], wanted[name]) for name in SHAPES)


@pytest.fixture(autouse=True)
def no_device_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("waited for the whole device")

    monkeypatch.setattr(torch.cuda, "synchronize", refuse)


@pytest.mark.parametrize("ring", [4 * EXPERT, 2 * EXPERT, EXPERT, 100, 24, 2])
def test_an_expert_arrives_through_a_ring_of_any_size(ring: int) -> None:
    bench = Bench(ring)
    assert bench.device.pinned_bytes == ring
    for slot, expert in enumerate((3, 1, 2, 3)):
        assert bench.mover.move(ExpertKey(0, expert), slot) == EXPERT
    assert all(bench.holds(slot, expert) for slot, expert in enumerate((3, 1, 2, 3)))
    assert bench.device.now == pytest.approx(4 * EXPERT / RATE)


@pytest.mark.parametrize("ring", [2 * EXPERT, 100])
def test_experts_of_two_shapes_go_through_one_ring(ring: int) -> None:
    small = {"gate_up_proj": (2, 4), "down_proj": (4, 1)}
    device = FakeDevice(RATE)
    arena = SlotArena([(2, SHAPES), (2, small)], torch.float32, torch.device("cpu"))
    mover = CudaMover(Experts(), arena, ring, device)
    for slot in range(4):
        mover.move(ExpertKey(0, slot), slot)
        wanted = {name: torch.empty_like(view) for name, view in arena[slot].items()}
        Experts().read(ExpertKey(0, slot), wanted)
        assert all(torch.equal(arena[slot][name], wanted[name]) for name in wanted)
    moved = sum(view.nbytes for slot in range(4) for view in arena[slot].values())
    assert device.now == pytest.approx(moved / RATE)


def test_a_copy_waits_for_what_the_slot_is_computed_from() -> None:
    bench = Bench(2 * EXPERT)
    bench.device.computing = 5.0
    bench.mover.move(ExpertKey(0, 1), 0)
    assert bench.device.now == pytest.approx(5.0 + EXPERT / RATE)


def test_computing_waits_for_the_slot_that_it_needs_alone() -> None:
    bench = Bench(2 * EXPERT)
    for slot in range(3):
        bench.mover.move(ExpertKey(0, slot), slot)
    copies = len(SHAPES)  # of each expert
    bench.mover.arrive(1)
    assert bench.device.waits == [2 * copies]
    assert bench.device.computing == pytest.approx(2 * EXPERT / RATE)


@pytest.mark.parametrize("ring", [2 * EXPERT, 100])
def test_a_read_that_fails_gives_its_chunk_back(ring: int) -> None:
    bench = Bench(ring)
    bench.experts.fails = True
    for _ in range(5):
        with pytest.raises(MiractlError, match="the disk is gone"):
            bench.mover.move(ExpertKey(0, 1), 0)
    bench.experts.fails = False
    bench.mover.move(ExpertKey(0, 1), 0)
    assert bench.holds(0, 1)


def test_times_of_the_queue_are_those_of_the_device() -> None:
    bench = Bench(2 * EXPERT)
    queue = TransferQueue(bench.mover, lambda: bench.device.now, workers=1)
    try:
        tickets = [queue.submit(ExpertKey(0, slot), slot) for slot in range(3)]
        for ticket in tickets:
            queue.wait(ticket)
    finally:
        queue.close()
    assert queue.stats.bytes == 3 * EXPERT
    assert max(ticket.finished_at for ticket in tickets) == pytest.approx(3 * EXPERT / RATE)
    assert queue.stats.busy_seconds == pytest.approx(3 * EXPERT / RATE)
