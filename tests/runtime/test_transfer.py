"""The transfer queue: order, what ends and pauses it, and what it counts, by a mover that waits."""

import contextlib
import random
import threading
import time
from collections.abc import Iterator

import pytest

from miractl.errors import MiractlError
from miractl.native.residency import State
from miractl.native.residency_layout import Progress
from miractl.policy.keys import ExpertKey
from miractl.runtime.ticket import BACKGROUND, Course, Ticket
from miractl.runtime.transfer_queue import TransferQueue

SIZE = 100


class GatedMover:
    """Moves a chunk when the test opens the gate; the clock advances by one second a chunk."""

    source, busy_seconds, seconds = "disk", None, None

    def __init__(self, chunks: int = 1) -> None:
        self.gate, self.started = threading.Semaphore(0), threading.Semaphore(0)
        self.moved: list[int] = []
        self.threads: list[str] = []  # of the moved
        self.closed: list[int] = []  # before their end
        self.now, self.chunks = 0.0, chunks
        self.fail = False

    def move(self, key: ExpertKey, slot: int, chunks: int) -> Course:
        try:
            for left in reversed(range(chunks)):
                self.started.release()
                assert self.gate.acquire(timeout=10)
                self.now += 1.0
                if self.fail:
                    raise MiractlError("the disk is gone")
                if left:
                    yield SIZE * (chunks - left) // chunks
        except GeneratorExit:
            self.closed.append(key.expert)
            raise
        self.moved.append(key.expert)
        self.threads.append(threading.current_thread().name)
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


def test_the_background_goes_last_and_is_no_bet(queue: TransferQueue, mover: GatedMover) -> None:
    first = submit(queue, 9)
    assert mover.started.acquire(timeout=10)
    rest = [submit(queue, 1, rank=BACKGROUND), submit(queue, 2, rank=0.99)]
    assert queue.pending == (1, 1)
    queue.overtake(rest[0])
    assert queue.pending == (2, 1)
    rest.append(submit(queue, 3, rank=BACKGROUND))
    finish(mover, first, *rest)
    assert mover.moved == [9, 1, 2, 3]
    assert queue.pending == (0, 0)


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
    mover.gate.release()
    mover.gate.release()
    queue.wait(queued)
    queue.wait(running)
    assert threading.current_thread().name in mover.threads


def test_an_error_reaches_whoever_waits_and_the_queue_goes_on(
    queue: TransferQueue, mover: GatedMover
) -> None:
    mover.fail = True
    ticket = submit(queue, 1)
    mover.gate.release()
    with pytest.raises(MiractlError, match="the disk is gone"):
        queue.wait(ticket)
    assert (ticket.state, queue.stats.bytes) == (State.FAILED, 0)
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
    monkeypatch.setattr("miractl.runtime.transfer_queue.CLOSE_SECONDS", 0.05)
    mover = GatedMover()
    queue = TransferQueue(mover, mover.clock, workers=1)
    ticket = queue.submit(ExpertKey(0, 1), 0)
    assert mover.started.acquire(timeout=10)
    queue.close()  # the gate is shut
    assert ticket.state is State.RUNNING
    mover.gate.release()
    queue.finish(ticket)
    assert ticket.state is State.DONE


class Halves:
    """A queue of one worker whose bets are moved in two halves, a second each."""

    def __init__(self) -> None:
        self.mover = GatedMover(chunks=2)
        self.queue = TransferQueue(self.mover, self.mover.clock, workers=1)
        self.progress = Progress(8)

    def bet(self, expert: int, rank: float = 0.5) -> Ticket:
        """One of which the first half is being moved."""
        ticket = self.queue.submit(ExpertKey(0, expert), expert, rank, self.progress)
        assert self.mover.started.acquire(timeout=10)
        return ticket

    def open(self, count: int = 1, next_begins: bool = True) -> None:
        """So many chunks more are moved."""
        for number in range(count):
            self.mover.gate.release()
            if next_begins or number < count - 1:
                assert self.mover.started.acquire(timeout=10)

    def paused(self, expert: int) -> tuple[Ticket, Ticket]:
        """A bet that has made way for a demand, and that demand, being moved."""
        bet = self.bet(expert)
        demand = submit(self.queue, expert + 1)
        self.open()
        assert (bet.state, demand.state) == (State.PAUSED, State.RUNNING)
        return bet, demand


@pytest.fixture
def halves() -> Iterator[Halves]:
    halves = Halves()
    yield halves
    for _ in range(20):
        halves.mover.gate.release()
    halves.queue.close()


def ended(ticket: Ticket) -> State:
    assert ticket.finished.wait(10)
    return ticket.state


def test_a_bet_makes_way_for_a_demand_and_goes_on(halves: Halves) -> None:
    bet, demand = halves.paused(1)
    assert halves.queue.stats.bytes == SIZE / 2
    assert halves.progress.state[1] == State.PAUSED
    assert halves.progress.moved[1] == SIZE / 2
    halves.open()  # the demand, in one piece
    assert (ended(demand), demand.finished_at) == (State.DONE, 2.0)
    halves.open(next_begins=False)
    assert (ended(bet), bet.finished_at) == (State.DONE, 3.0)
    assert bet.passed == 2.0  # the pause is left out
    assert halves.mover.moved == [2, 1]
    assert (halves.queue.stats.bytes, halves.queue.stats.busy_seconds) == (2 * SIZE, 3.0)
    assert halves.queue.pending == (0, 0)
    assert halves.progress.state[1] == State.DONE


def test_the_time_of_a_transfer_is_that_of_its_parts(halves: Halves) -> None:
    halves.bet(3)
    halves.open(2, next_begins=False)
    while halves.queue.pending != (0, 0):
        threading.Event().wait(0.001)
    assert halves.queue.seconds_each == 2.0
    bet, demand = halves.paused(1)
    halves.open()
    halves.open(next_begins=False)
    assert (ended(demand), ended(bet)) == (State.DONE, State.DONE)
    assert halves.queue.seconds_each == pytest.approx(0.9 * (0.9 * 2 + 0.1 * 1) + 0.1 * 2)


def test_a_bet_that_is_not_wanted_ends_where_it_can_be_left(halves: Halves) -> None:
    bet = halves.bet(1)
    assert not halves.queue.abandon(bet)
    assert bet.state is State.RUNNING
    halves.open(next_begins=False)
    assert ended(bet) is State.CANCELLED
    assert halves.mover.closed == [1]
    assert (halves.queue.stats.bytes, halves.progress.moved[1]) == (SIZE / 2, SIZE / 2)
    assert halves.progress.state[1] == State.CANCELLED
    assert halves.queue.pending == (0, 0)


def test_a_paused_bet_can_be_dropped_at_once(halves: Halves) -> None:
    bet, demand = halves.paused(1)
    assert halves.queue.cancel(bet)
    assert (halves.mover.closed, halves.queue.pending) == ([1], (1, 0))
    halves.open(next_begins=False)
    assert ended(demand) is State.DONE
    assert halves.queue.stats.bytes == SIZE / 2 + SIZE


def test_a_bet_that_is_waited_for_makes_way_for_nobody(halves: Halves) -> None:
    bet = halves.bet(1)
    assert halves.queue.overtake(bet) is bet
    demand = submit(halves.queue, 2)
    assert halves.queue.pending == (2, 0)
    halves.open(2)
    assert ended(bet) is State.DONE
    assert demand.state is State.RUNNING
    assert halves.mover.moved == [1]


def test_whoever_waits_for_a_paused_bet_goes_on_with_it(halves: Halves) -> None:
    bet, demand = halves.paused(1)  # the worker is busy with the demand
    assert halves.queue.overtake(bet) is bet
    for _ in range(2):
        halves.mover.gate.release()
    halves.queue.wait(bet)
    assert ended(demand) is State.DONE
    assert threading.current_thread().name in halves.mover.threads
    assert halves.queue.stats.bytes == 2 * SIZE


def test_who_is_wanted_again_before_he_is_left_goes_on(halves: Halves) -> None:
    bet = halves.bet(1)
    halves.queue.abandon(bet)
    assert halves.queue.overtake(bet) is bet
    halves.open(2, next_begins=False)
    assert ended(bet) is State.DONE


def test_who_is_wanted_again_too_late_is_moved_anew(halves: Halves) -> None:
    bet = halves.bet(1)
    halves.queue.abandon(bet)
    halves.open(next_begins=False)
    assert ended(bet) is State.CANCELLED
    again = halves.queue.overtake(bet)
    assert again is not bet
    assert again.is_demand
    assert halves.mover.started.acquire(timeout=10)
    halves.open(next_begins=False)
    assert ended(again) is State.DONE
    assert halves.queue.stats.bytes == SIZE / 2 + SIZE


def test_an_error_after_a_pause_is_that_of_the_bet_alone(halves: Halves) -> None:
    bet, demand = halves.paused(1)
    halves.open()
    assert ended(demand) is State.DONE
    halves.mover.fail = True
    halves.open(next_begins=False)
    assert ended(bet) is State.FAILED
    assert halves.progress.state[1] == State.FAILED
    assert halves.progress.moved[1] == SIZE / 2
    with pytest.raises(MiractlError, match="the disk is gone"):
        halves.queue.wait(bet)
    assert halves.queue.pending == (0, 0)


def test_an_error_of_the_demand_lets_the_paused_bet_go_on(halves: Halves) -> None:
    bet, demand = halves.paused(1)
    halves.mover.fail = True
    halves.mover.gate.release()
    assert ended(demand) is State.FAILED
    halves.mover.fail = False
    assert halves.mover.started.acquire(timeout=10)
    halves.open(next_begins=False)
    assert ended(bet) is State.DONE


def test_closing_drops_what_is_paused(halves: Halves) -> None:
    bet, demand = halves.paused(1)
    halves.mover.gate.release()
    halves.queue.close()
    assert ended(demand) is State.DONE
    assert bet.state is State.CANCELLED
    assert halves.mover.closed == [1]
    assert halves.queue.pending == (0, 0)


def test_closing_leaves_a_bet_at_its_border(halves: Halves) -> None:
    bet = halves.bet(1)
    closing = threading.Thread(target=halves.queue.close)
    closing.start()
    while not halves.queue._closed:
        threading.Event().wait(0.001)
    halves.mover.gate.release()
    closing.join(10)
    assert bet.state is State.CANCELLED


def test_small_experts_go_side_by_side() -> None:
    mover = GatedMover()
    queue = TransferQueue(mover, mover.clock, workers=2)
    tickets = [submit(queue, 1), submit(queue, 2, rank=0.5)]
    for _ in tickets:
        assert mover.started.acquire(timeout=10)
    assert [ticket.state for ticket in tickets] == [State.RUNNING] * 2
    finish(mover, *tickets)
    queue.close()


def test_bets_of_several_chunks_begin_when_no_demand_is_left() -> None:
    mover = GatedMover(chunks=2)
    queue = TransferQueue(mover, mover.clock, workers=2)
    demand, bet = submit(queue, 1), submit(queue, 2, rank=0.5)
    assert mover.started.acquire(timeout=10)
    assert not mover.started.acquire(timeout=0.05)
    assert (demand.state, bet.state) == (State.RUNNING, State.QUEUED)
    mover.gate.release()
    for _ in range(2):
        assert mover.started.acquire(timeout=10)
        mover.gate.release()
    assert ended(bet) is State.DONE
    queue.close()


class EagerMover:
    """Moves in four chunks; every tenth expert fails after the second."""

    source, chunks, busy_seconds, seconds = "disk", 4, None, None

    def move(self, key: ExpertKey, slot: int, chunks: int) -> Course:
        for done in range(1, chunks):
            time.sleep(0)  # another thread goes on
            if key.expert % 10 == 9 and done == 2:
                raise MiractlError("the disk is gone")
            yield SIZE * done // chunks
        return SIZE

    def arrive(self, slot: int) -> None:
        pass


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_asked_every_transfer_ends_and_the_books_agree(seed: int) -> None:
    chance, progress = random.Random(seed), Progress(200)
    queue = TransferQueue(EagerMover(), time.monotonic, workers=2)
    bets: list[Ticket] = []
    others: list[Ticket] = []
    for slot in range(200):
        if chance.random() < 0.3:
            others.append(submit(queue, slot))
        else:
            bets.append(submit(queue, slot, rank=chance.random(), progress=progress))
        if bets and chance.random() < 0.6:
            ticket = chance.choice(bets)
            if ticket.is_demand:
                continue
            match chance.randrange(4):
                case 0:
                    queue.cancel(ticket)
                case 1:
                    queue.abandon(ticket)
                case 2:
                    others.append(queue.overtake(ticket))
                case _:
                    others.append(queue.overtake(ticket))
                    with contextlib.suppress(MiractlError):
                        queue.wait(others[-1])
    while queue.pending != (0, 0):
        threading.Event().wait(0.001)
    queue.close()
    assert all(ticket.state is State.DONE for ticket in others if not ticket.error)
    tickets = {*bets, *others}
    assert {ticket.state for ticket in tickets} <= {State.DONE, State.FAILED, State.CANCELLED}
    assert queue.stats.bytes == sum(ticket.moved for ticket in tickets)
    for ticket in bets:
        assert progress.state[ticket.slot] == ticket.state
        assert progress.moved[ticket.slot] == ticket.moved
