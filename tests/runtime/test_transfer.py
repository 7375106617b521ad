"""The transfer queue: order, cancellation, errors and what it counts, with a mover that waits."""

import threading
from collections.abc import Iterator

import pytest

from miractl.errors import MiractlError
from miractl.native.residency import State
from miractl.policy.keys import ExpertKey
from miractl.runtime.transfer import TransferQueue

SIZE = 100


class GatedMover:
    """Moves when the test opens the gate; the clock advances by one second a move."""

    source = "disk"

    def __init__(self) -> None:
        self.gate, self.started = threading.Semaphore(0), threading.Semaphore(0)
        self.moved: list[int] = []
        self.now = 0.0
        self.fail = False

    def move(self, key: ExpertKey, slot: int) -> int:
        self.started.release()
        assert self.gate.acquire(timeout=10)
        self.now += 1.0
        if self.fail:
            raise MiractlError("the disk is gone")
        self.moved.append(key.expert)
        return SIZE

    def arrive(self, slot: int) -> None:
        pass

    def clock(self) -> float:
        return self.now


@pytest.fixture
def mover() -> GatedMover:
    return GatedMover()


@pytest.fixture
def queue(mover: GatedMover) -> Iterator[TransferQueue]:
    queue = TransferQueue(mover, mover.clock, workers=1)
    yield queue
    for _ in range(20):
        mover.gate.release()
    queue.close()


def submit(queue: TransferQueue, expert: int, **how: float):  # type: ignore[no-untyped-def]
    return queue.submit(ExpertKey(0, expert), expert, **how)


def finish(mover: GatedMover, *tickets) -> None:  # type: ignore[no-untyped-def]
    for _ in tickets:
        mover.gate.release()
    for ticket in tickets:
        assert ticket.finished.wait(10)


def test_demands_overtake_bets_and_likely_bets_overtake_unlikely_ones(
    queue: TransferQueue, mover: GatedMover
) -> None:
    first = submit(queue, 9, rank=0.5)
    assert mover.started.acquire(timeout=10)  # the worker is busy: the rest queues up
    rest = [submit(queue, 1, rank=0.9), submit(queue, 2, rank=0.1), submit(queue, 3)]
    finish(mover, first, *rest)
    assert mover.moved == [9, 3, 2, 1]


def test_a_queued_transfer_can_be_cancelled_and_a_running_one_cannot(
    queue: TransferQueue, mover: GatedMover
) -> None:
    running = submit(queue, 1)
    assert mover.started.acquire(timeout=10)
    queued = submit(queue, 2)
    assert queue.cancel(queued)
    assert not queue.cancel(running)
    last = submit(queue, 3)
    finish(mover, running, last)
    assert mover.moved == [1, 3]
    assert queued.state is State.CANCELLED


def test_a_transfer_that_does_not_come_back_is_told_of(
    queue: TransferQueue, mover: GatedMover
) -> None:
    assert queue.stalled == 0.0
    first, second = submit(queue, 1), submit(queue, 2)
    assert mover.started.acquire(timeout=10)
    mover.now = 30.0
    assert queue.stalled == 30.0
    finish(mover, first)
    assert mover.started.acquire(timeout=10)
    mover.now += 5.0
    assert queue.stalled == 5.0  # since the last one ended
    finish(mover, second)
    queue.wait(second)
    assert queue.stalled == 0.0


def test_whoever_waits_for_a_queued_transfer_carries_it_out(
    queue: TransferQueue, mover: GatedMover
) -> None:
    running = submit(queue, 1)
    assert mover.started.acquire(timeout=10)
    queued = submit(queue, 2)
    threads: list[str] = []
    move = mover.move

    def noted(key: ExpertKey, slot: int) -> int:
        threads.append(threading.current_thread().name)
        return move(key, slot)

    mover.move = noted  # type: ignore[method-assign]
    mover.gate.release()
    mover.gate.release()
    queue.wait(queued)
    assert threads == [threading.current_thread().name]
    queue.wait(running)


def test_an_error_reaches_whoever_waits_and_the_queue_goes_on(
    queue: TransferQueue, mover: GatedMover
) -> None:
    mover.fail = True
    ticket = submit(queue, 1)
    mover.gate.release()
    with pytest.raises(MiractlError, match="the disk is gone"):
        queue.wait(ticket)
    assert ticket.state is State.FAILED
    mover.fail = False
    finish(mover, submit(queue, 2))
    assert mover.moved == [2]


def test_busy_time_and_bytes_are_counted(queue: TransferQueue, mover: GatedMover) -> None:
    for expert in (1, 2, 3):
        finish(mover, submit(queue, expert))
    assert queue.stats.bytes == 3 * SIZE
    assert queue.stats.busy_seconds == 3.0
    assert queue.stats.peak_bytes_per_second == SIZE


def test_closing_does_not_wait_for_a_disk_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miractl.runtime.transfer.CLOSE_SECONDS", 0.05)
    mover = GatedMover()
    queue = TransferQueue(mover, mover.clock, workers=1)
    ticket = queue.submit(ExpertKey(0, 1), 0)
    assert mover.started.acquire(timeout=10)
    queue.close()  # the gate is shut
    assert ticket.state is State.RUNNING
    mover.gate.release()
    queue.finish(ticket)
    assert ticket.state is State.DONE
