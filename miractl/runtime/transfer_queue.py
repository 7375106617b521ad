"""Bringing experts into slots in the background: demands before bets, bets can be left.

A transfer can be left at the end of a chunk. There a bet that is not wanted any more is given up,
and one that is goes on after all demands: they have the disk or the link to themselves. Experts of
one chunk are too small for that to matter, and go side by side.

A demand that no worker has taken yet is carried out by the thread that waits for it, so a single
miss never pays for a thread switch. Times are seconds of the injected clock.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from miractl.native.residency import State
from miractl.native.residency_layout import Progress
from miractl.policy.keys import ExpertKey
from miractl.runtime.ticket import BACKGROUND, BET, DEMAND, UNDER_WAY, WAITING, Ticket
from miractl.runtime.transfer import Mover, TransferStats

SECONDS_RATE = 0.1  # of the average time of a transfer
CLOSE_SECONDS = 2.0  # that workers are waited for: a read from a disk that hangs never ends


class TransferQueue:
    """Worker threads over one priority queue."""

    def __init__(self, mover: Mover, clock: Callable[[], float], workers: int = 2) -> None:
        self.mover, self.stats = mover, TransferStats()
        self._clock = clock
        self._lock = threading.Condition()
        self._heap: list[tuple[float, int, Ticket]] = []
        self._order = itertools.count()
        self._running, self._busy_since, self._closed = 0, 0.0, False
        self.seconds_each = 0.0  # of a transfer that shares the link with nobody; 0: not known yet
        self._stopped_at = 0.0  # the last one
        self._told = 0.0  # seconds by the mover's clock, as of then
        self._pending = {DEMAND: 0, BET: 0, BACKGROUND: 0}  # that have not ended
        self._threads = [
            threading.Thread(target=self._work, name=f"miractl-transfer-{n}", daemon=True)
            for n in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, key: ExpertKey, slot: int, rank: float = DEMAND, progress: Progress | None = None
    ) -> Ticket:
        """Queue a transfer; lower ranks go first, equal ranks in order of arrival."""
        with self._lock:
            return self._enter(Ticket(key, slot, rank, progress))

    def overtake(self, ticket: Ticket) -> Ticket:
        """Somebody waits for it now: a demand from now on.

        Returns another ticket, to wait for instead, where it had just been given up.
        """
        with self._lock:
            if ticket.state is State.CANCELLED:
                return self._enter(Ticket(ticket.key, ticket.slot))
            self._promote(ticket)
            return ticket

    def cancel(self, ticket: Ticket) -> bool:
        """Drop a transfer that is queued or paused; False if it is too late."""
        with self._lock:
            if ticket.state in WAITING:
                self._drop(ticket)
            return ticket.state is State.CANCELLED

    def abandon(self, ticket: Ticket) -> bool:
        """The same, but what is being carried out ends where it can be left, cancelled then."""
        with self._lock:
            if ticket.state in WAITING:
                self._drop(ticket)
            ticket.is_unwanted = ticket.state is State.RUNNING
            return ticket.state is State.CANCELLED

    @property
    def pending(self) -> tuple[int, int]:
        """Demands and bets that are not finished; as good as what a lock would tell."""
        return self._pending[DEMAND], self._pending[BET]

    @property
    def source(self) -> str:
        """The mover's."""
        return self.mover.source

    @property
    def chunks(self) -> int:
        """The mover's."""
        return self.mover.chunks

    @property
    def backlog(self) -> float:
        """Seconds until a demand that is submitted now could begin."""
        return self.pending[0] * self.seconds_each

    @property
    def stalled(self) -> float:
        """Seconds that transfers have been under way and none has come back."""
        with self._lock:
            if not self._running:
                return 0.0
            return self._clock() - max(self._busy_since, self._stopped_at)

    def poll(self) -> None:
        """Nothing to do: the workers keep the states."""

    def finish(self, ticket: Ticket) -> None:
        """Return when a transfer that was not cancelled is done, given up or has failed."""
        ticket.finished.wait()

    def wait(self, ticket: Ticket) -> None:
        """Return when the slot can be computed with; raises what the transfer raised."""
        if ticket.state is State.DONE:
            self.mover.arrive(ticket.slot)
            return
        asked = self._clock()
        with self._lock:
            self._promote(ticket)
            mine = ticket.state in WAITING
            if mine:
                self._begin(ticket)
        if mine:
            self._carry_out(ticket)
        ticket.finished.wait()
        self.stats.waited_seconds += max(0.0, self._clock() - asked)
        if ticket.error is not None:
            raise ticket.error
        self.mover.arrive(ticket.slot)

    def close(self) -> None:
        """Stop the workers; bets are dropped, and a worker that hangs is left behind."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            for _, _, ticket in self._heap:
                if ticket.state in WAITING and not ticket.is_demand:
                    self._drop(ticket)

    def _enter(self, ticket: Ticket) -> Ticket:
        self._pending[ticket.kind] += 1
        self._push(ticket)
        return ticket

    def _push(self, ticket: Ticket) -> None:
        heapq.heappush(self._heap, (ticket.rank, next(self._order), ticket))
        self._lock.notify()

    def _promote(self, ticket: Ticket) -> None:
        ticket.is_unwanted = False
        if ticket.is_demand or ticket.state not in UNDER_WAY:
            return
        self._pending[ticket.kind] -= 1
        self._pending[DEMAND] += 1
        ticket.rank = DEMAND  # an entry that it has will be passed over
        if ticket.state in WAITING:
            self._push(ticket)

    def _drop(self, ticket: Ticket) -> None:
        ticket.cancel()
        self._leave(ticket)
        if ticket.course is not None:
            ticket.course.close()

    def _leave(self, ticket: Ticket) -> None:
        """It has ended: bets that were held back for the last demand go on."""
        self._pending[ticket.kind] -= 1
        if ticket.is_demand and self._heap and not self._pending[DEMAND]:
            self._lock.notify_all()

    def _work(self) -> None:
        while (ticket := self._next()) is not None:
            self._carry_out(ticket)

    def _next(self) -> Ticket | None:
        with self._lock:
            while not self._closed:
                ticket = self._best()
                if ticket is not None:
                    self._begin(ticket)
                    return ticket
                self._lock.wait()
        return None

    def _best(self) -> Ticket | None:
        """Take out who goes first of those that may go now."""
        while self._heap:
            rank, _, ticket = self._heap[0]
            stands = ticket.state in WAITING and ticket.rank == rank
            if stands and not ticket.is_demand and self._yields:
                return None
            heapq.heappop(self._heap)
            if stands:
                return ticket
        return None

    @property
    def _yields(self) -> bool:
        """Whether bets let demands have the link now."""
        return self._pending[DEMAND] > 0 and self.mover.chunks > 1

    def _begin(self, ticket: Ticket) -> None:
        ticket.since = now = self._clock()
        ticket.begin(now)
        if self._running == 0:
            self._busy_since = now
        self._running += 1

    def _carry_out(self, ticket: Ticket) -> None:
        """To its end, or to where it is left."""
        moved, state = ticket.moved, State.DONE
        try:
            if ticket.course is None:
                chunks = 1 if ticket.is_demand else self.mover.chunks
                ticket.course = self.mover.move(ticket.key, ticket.slot, chunks)
            while True:
                moved = next(ticket.course)
                if self._is_left(ticket, moved):
                    return
        except StopIteration as end:
            moved = end.value
        except BaseException as error:
            ticket.error, state = error, State.FAILED  # raised again by whoever waits for it
        try:
            with self._lock:
                self._stop(ticket, moved, state)
        finally:
            ticket.finished.set()  # whatever happens, nobody waits for ever

    def _is_left(self, ticket: Ticket, moved: int) -> bool:
        """Whether a transfer that can be left here is paused or given up."""
        with self._lock:
            if ticket.is_unwanted or (self._closed and not ticket.is_demand):
                self._stop(ticket, moved, State.CANCELLED)
            elif self._yields and not ticket.is_demand:
                self._stop(ticket, moved, State.PAUSED)
                self._push(ticket)
                return True
            else:
                self._count(ticket, moved)
                return False
        assert ticket.course is not None
        ticket.course.close()
        ticket.finished.set()
        return True

    def _count(self, ticket: Ticket, moved: int) -> None:
        self.stats.bytes += moved - ticket.moved
        ticket.moved = moved

    def _stop(self, ticket: Ticket, moved: int, state: State) -> None:
        """Nobody carries it out any more."""
        now = self._clock()
        # Those that were under way together have shared the link: each had it since the last.
        ticket.own += now - max(ticket.since, self._stopped_at)
        self._stopped_at = now
        self._count(ticket, moved)
        ticket.end(now, state)
        self._running -= 1
        if (busy := self.mover.busy_seconds) is not None:
            self.stats.busy_seconds = busy
        elif self._running == 0:
            self.stats.busy_seconds += now - self._busy_since
        if state is State.PAUSED:
            return
        self._leave(ticket)
        if state is State.DONE:
            own = ticket.own
            if (told := self.mover.seconds) is not None:  # what others had of it, they add less
                own, self._told = told - self._told, told
            rate = SECONDS_RATE if self.seconds_each else 1.0
            self.seconds_each += rate * (own - self.seconds_each)
            if moved and ticket.passed > 0:
                peak = self.stats.peak_bytes_per_second or 0.0
                self.stats.peak_bytes_per_second = max(moved / ticket.passed, peak)
