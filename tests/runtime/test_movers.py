"""Copies to a GPU: their order, and what waits for what, on a device whose copies take time."""

import pytest
import torch

from miractl.errors import MiractlError
from miractl.native.residency import State
from miractl.policy.keys import ExpertKey
from miractl.runtime import movers
from miractl.runtime.arena import SlotArena
from miractl.runtime.movers import CudaMover
from miractl.runtime.parcels import Numbers
from miractl.runtime.ticket import Course, carry_out
from miractl.runtime.transfer_queue import TransferQueue
from tests.runtime.fake_device import FakeDevice

SHAPES = {"gate_up_proj": (4, 8), "down_proj": (8, 2)}
EXPERT = 4 * (32 + 16)  # bytes
RATE = 100.0  # an expert takes 1.92 s


class Experts:
    """Experts of float32 whose every number tells which one it is; a parameter is a chunk."""

    fails = False

    def chunks(self, key: ExpertKey, slot: dict[str, torch.Tensor]) -> int:
        return len(slot)

    def read(self, key: ExpertKey, slot: dict[str, torch.Tensor]) -> int:
        return carry_out(self.course(key, slot, 1))

    def course(self, key: ExpertKey, slot: dict[str, torch.Tensor], chunks: int) -> Course:
        read = 0
        for number, view in enumerate(slot.values()):
            if number and chunks > 1:
                yield read
            if self.fails:
                raise MiractlError("the disk is gone")
            view.copy_(torch.arange(view.numel()).view(view.shape) + 1000 * key.expert + number)
            read += view.nbytes
        return read


class Bench:
    """A mover of so much pinned memory, and its slots."""

    def __init__(self, ring: int) -> None:
        self.device, self.experts = FakeDevice(RATE), Experts()
        self.arena = SlotArena([(4, SHAPES)], torch.float32, torch.device("cpu"))
        self.mover = CudaMover(self.experts, Numbers(self.arena), ring, self.device)

    def move(self, expert: int, slot: int) -> int:
        return carry_out(self.mover.move(ExpertKey(0, expert), slot, 1))

    def holds(self, slot: int, expert: int) -> bool:
        wanted = {name: torch.empty(shape) for name, shape in SHAPES.items()}
        Experts().read(ExpertKey(0, expert), wanted)
        return all(torch.equal(self.arena[slot][name], wanted[name]) for name in SHAPES)


@pytest.fixture(autouse=True)
def no_device_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("waited for the whole device")

    monkeypatch.setattr(torch.cuda, "synchronize", refuse)


@pytest.fixture(params=[1024, 64, 20])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of a copy."""
    size: int = request.param
    monkeypatch.setattr(movers, "GPU_CHUNK", size)
    return size


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("ring", [4 * EXPERT, 2 * EXPERT, EXPERT, 100, 24, 2])
def test_an_expert_arrives_through_a_ring_of_any_size(ring: int) -> None:
    bench = Bench(ring)
    assert bench.device.pinned_bytes == ring
    for slot, expert in enumerate((3, 1, 2, 3)):
        assert bench.move(expert, slot) == EXPERT
    assert all(bench.holds(slot, expert) for slot, expert in enumerate((3, 1, 2, 3)))
    assert bench.device.now == pytest.approx(4 * EXPERT / RATE)


@pytest.mark.parametrize("ring", [2 * EXPERT, 100])
def test_experts_of_two_shapes_go_through_one_ring(ring: int) -> None:
    small = {"gate_up_proj": (2, 4), "down_proj": (4, 1)}
    device = FakeDevice(RATE)
    arena = SlotArena([(2, SHAPES), (2, small)], torch.float32, torch.device("cpu"))
    mover = CudaMover(Experts(), Numbers(arena), ring, device)
    for slot in range(4):
        carry_out(mover.move(ExpertKey(0, slot), slot, 1))
        wanted = {name: torch.empty_like(view) for name, view in arena[slot].items()}
        Experts().read(ExpertKey(0, slot), wanted)
        assert all(torch.equal(arena[slot][name], wanted[name]) for name in wanted)
    moved = sum(view.nbytes for slot in range(4) for view in arena[slot].values())
    assert device.now == pytest.approx(moved / RATE)


def test_a_copy_waits_for_what_the_slot_is_computed_from() -> None:
    bench = Bench(2 * EXPERT)
    bench.device.computing = 5.0
    bench.move(1, 0)
    assert bench.device.now == pytest.approx(5.0 + EXPERT / RATE)


def test_computing_waits_for_the_slot_that_it_needs_alone() -> None:
    bench = Bench(2 * EXPERT)
    for slot in range(3):
        bench.move(slot, slot)
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
            bench.move(1, 0)
    bench.experts.fails = False
    bench.move(1, 0)
    assert bench.holds(0, 1)


@pytest.mark.parametrize("ring", [2 * EXPERT, 100])
def test_the_link_is_busy_while_it_copies_by_the_clock_of_the_device(
    ring: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(movers, "GPU_CHUNK", 64)
    bench = Bench(ring)
    course = bench.experts.course

    def slow(key: ExpertKey, slot: dict[str, torch.Tensor], chunks: int) -> Course:
        bench.device.now += 7.0
        return course(key, slot, chunks)

    monkeypatch.setattr(bench.experts, "course", slow)
    queue = TransferQueue(bench.mover, lambda: bench.device.now, workers=1)
    try:
        for slot in range(3):
            bench.device.computing = bench.device.now + 11.0  # with the slot
            queue.wait(queue.submit(ExpertKey(0, slot), slot))
    finally:
        queue.close()
    assert bench.device.now > 3 * (11.0 + EXPERT / RATE) - 1e-6
    assert queue.stats.busy_seconds == pytest.approx(3 * EXPERT / RATE)


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


def test_a_copy_is_a_chunk_ahead_of_the_one_that_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(movers, "GPU_CHUNK", 64)
    bench = Bench(3 * EXPERT)
    course = bench.mover.move(ExpertKey(0, 1), 0, bench.mover.chunks)
    assert next(course) == 0  # half of it is read
    assert next(course) == 2 * 64  # queued, of which the first is there
    assert bench.device.now == pytest.approx(64 / RATE)
    assert carry_out(course) == EXPERT
    assert bench.device.now == pytest.approx(EXPERT / RATE)  # the link had no gaps
    assert bench.holds(0, 1)


def test_what_is_given_up_gives_its_buffer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movers, "GPU_CHUNK", 64)
    bench = Bench(2 * EXPERT)
    for reached in (1, 2, 1, 2):
        course = bench.mover.move(ExpertKey(0, 3), 0, bench.mover.chunks)
        for _ in range(reached):
            next(course)
        course.close()
    bench.move(1, 0)  # into the same slot, from a buffer whose copy may be under way
    bench.move(2, 1)
    assert bench.holds(0, 1)
    assert bench.holds(1, 2)


def test_a_demand_always_finds_a_buffer() -> None:
    bench = Bench(2 * EXPERT)
    first, second = (bench.mover.move(ExpertKey(0, e), e, bench.mover.chunks) for e in (1, 2))
    next(first)  # keeps one, and may be left
    with pytest.raises(StopIteration):
        next(second)  # has the last one, and goes on to its end
    bench.move(3, 3)
    assert carry_out(first) == EXPERT
    assert all(bench.holds(slot, slot) for slot in (1, 2, 3))


def test_a_demand_goes_first_on_the_device_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movers, "GPU_CHUNK", 48)
    bench = Bench(3 * EXPERT)
    queue = TransferQueue(bench.mover, lambda: bench.device.now, workers=1)
    course, demands = bench.experts.course, []

    def asked(key: ExpertKey, slot: dict[str, torch.Tensor], chunks: int) -> Course:
        if key.expert == 1:
            demands.append(queue.submit(ExpertKey(0, 2), 2))
        return course(key, slot, chunks)

    monkeypatch.setattr(bench.experts, "course", asked)
    bet = queue.submit(ExpertKey(0, 1), 1, 0.5)
    try:
        assert bet.finished.wait(10)
    finally:
        queue.close()
    (demand,) = demands
    assert (bet.state, demand.state) == (State.DONE, State.DONE)
    assert demand.finished_at == pytest.approx(EXPERT / RATE)  # before any copy of the bet
    assert bet.finished_at == pytest.approx(2 * EXPERT / RATE)
    assert queue.stats.bytes == 2 * EXPERT
    assert bench.holds(1, 1)


def test_an_expert_in_pieces_of_a_small_ring_is_one_chunk() -> None:
    assert Bench(100).mover.chunks == 1
    assert Bench(2 * EXPERT).mover.chunks == len(SHAPES)
