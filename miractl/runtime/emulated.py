"""A link that a machine does not have: copies take the time that it would take, and move nothing.

Experts lie in host memory and are computed there; a slot is a place in the bookkeeping. What a
device behind a link of so many bytes a second would wait for, is waited for here. Nothing runs in
the background: the state of the link is worked out from the times of what was asked, so a clock of
a test gives the same course every time.

One transfer at a time, best rank first among those that wait when the link comes free; what has
begun is not interrupted.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from miractl.native.residency import State
from miractl.native.residency_layout import Progress
from miractl.policy.keys import ExpertKey
from miractl.runtime.ticket import BACKGROUND, DEMAND, Ticket
from miractl.runtime.transfer import TransferStats

OVERSLEEP = 100e-6  # seconds that the operating system may let one sleep too long


def rest(seconds: float) -> None:
    """Sleep a little less than that; the caller asks again."""
    time.sleep(max(0.0, seconds - OVERSLEEP))


class EmulatedLink:
    """Transfers as TransferQueue has them, in imagined time."""

    source = "emulated"

    def __init__(
        self,
        rate: float,
        expert_bytes: int,
        clock: Callable[[], float],
        sleep: Callable[[float], None] = rest,
    ) -> None:
        """`rate` in bytes a second; every transfer moves one expert."""
        self.rate, self.stats = rate, TransferStats(peak_bytes_per_second=rate)
        self.seconds_each = expert_bytes / rate
        self._bytes = expert_bytes
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, Ticket]] = []
        self._order = itertools.count()
        self._running: Ticket | None = None
        self._free_at = clock()  # when what runs will be done

    @property
    def pending(self) -> tuple[int, int]:
        """Demands and bets that are not finished; what is under way counts, whatever its rank."""
        with self._lock:
            self._catch_up()
            waiting = self._waiting()
            demands, bets = waiting.count(DEMAND), sum(DEMAND < r < BACKGROUND for r in waiting)
            if self._running is None:
                return demands, bets
            return demands + self._running.is_demand, bets + (not self._running.is_demand)

    @property
    def backlog(self) -> float:
        """Seconds until a demand that is submitted now could begin."""
        with self._lock:
            now = self._catch_up()
            left = 0.0 if self._running is None else self._free_at - now
            return left + self._waiting().count(DEMAND) * self.seconds_each

    @property
    def stalled(self) -> float:
        """Never: this link does not fail."""
        return 0.0

    def submit(
        self, key: ExpertKey, slot: int, rank: float = DEMAND, progress: Progress | None = None
    ) -> Ticket:
        """Queue a transfer; lower ranks go first, equal ranks in order of arrival."""
        ticket = Ticket(key, slot, rank, progress)
        with self._lock:
            now = self._catch_up()
            heapq.heappush(self._heap, (rank, next(self._order), ticket))
            self._begin_at(max(now, self._free_at), now)
        return ticket

    def overtake(self, ticket: Ticket) -> None:
        """Somebody waits for it now: what has not begun becomes a demand."""
        with self._lock:
            self._catch_up()
            if ticket.state is State.QUEUED and not ticket.is_demand:
                ticket.rank = DEMAND
                heapq.heappush(self._heap, (DEMAND, next(self._order), ticket))

    def cancel(self, ticket: Ticket) -> bool:
        """Drop a transfer that has not begun; False if it is too late."""
        with self._lock:
            self._catch_up()
            if ticket.state is State.QUEUED:
                ticket.cancel()
            return ticket.state is State.CANCELLED

    def poll(self) -> None:
        """Bring the states of all tickets up to now."""
        with self._lock:
            self._catch_up()

    def finish(self, ticket: Ticket) -> None:
        """Return when a transfer that was not cancelled is done."""
        asked = self._clock()
        while True:
            with self._lock:
                now = self._catch_up()
                if ticket.state is State.DONE:  # what asking took is no waiting
                    self.stats.waited_seconds += max(0.0, ticket.finished_at - asked)
                    return
                until = self._free_at
            self._sleep(until - now)

    def wait(self, ticket: Ticket) -> None:
        """Return when the ticket's transfer is done."""
        self.finish(ticket)

    def close(self) -> None:
        """Nothing runs that would have to end."""

    def _waiting(self) -> list[float]:
        """Ranks of what is queued; a transfer that overtook has an entry that counts no more."""
        return [rank for rank, _, t in self._heap if t.state is State.QUEUED and t.rank == rank]

    def _catch_up(self) -> float:
        """End and begin what has ended and begun by now; returns now."""
        now = self._clock()
        while self._running is not None and self._free_at <= now:
            self._end()
            self._begin_at(self._free_at, now)
        return now

    def _end(self) -> None:
        ticket = self._running
        assert ticket is not None
        ticket.end(self._free_at, State.DONE)
        ticket.finished.set()
        self._running = None
        self.stats.bytes += self._bytes
        self.stats.busy_seconds += self.seconds_each

    def _begin_at(self, start: float, now: float) -> None:
        """Let the best of those that wait begin, if the link is free at `start`, by `now`."""
        if self._running is not None or start > now:
            return
        while self._heap:
            ticket = heapq.heappop(self._heap)[2]
            if ticket.state is State.QUEUED:
                ticket.begin(start)
                self._running = ticket
                self._free_at = start + self.seconds_each
                return
