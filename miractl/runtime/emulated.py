"""A link that a machine does not have: copies take the time that it would take, and move nothing.

Experts lie in host memory and are computed there; a slot is a place in the bookkeeping. What a
device behind a link of so many bytes a second would wait for, is waited for here. Nothing runs in
the background: the state of the link is worked out from the times of what was asked, so a clock of
a test gives the same course every time.

One transfer at a time, best rank first among those that wait when the link comes free. At the end
of a chunk it comes free for a demand, and what was under way goes on later, or is given up there.
"""

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable

from miractl.native.residency import State
from miractl.native.residency_layout import Progress
from miractl.plan.chunks import LINK_CHUNK, chunks_of
from miractl.policy.keys import ExpertKey
from miractl.runtime.ticket import BACKGROUND, DEMAND, ENDED, UNDER_WAY, WAITING, Ticket
from miractl.runtime.transfer import TransferStats

ROUNDING = 1e-6  # of a chunk
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
        self.chunks = chunks_of(expert_bytes, LINK_CHUNK)
        self._bytes = expert_bytes
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._heap: list[tuple[float, int, Ticket]] = []
        self._order = itertools.count()
        self._running: Ticket | None = None
        self._free_at = clock()  # when what runs leaves the link

    @property
    def pending(self) -> tuple[int, int]:
        """Demands and bets that are not finished; what is under way counts, whatever its rank."""
        with self._lock:
            self._catch_up()
            ranks = [ticket.rank for ticket in self._waiting()]
            demands, bets = ranks.count(DEMAND), sum(DEMAND < r < BACKGROUND for r in ranks)
            if self._running is None:
                return demands, bets
            return demands + self._running.is_demand, bets + (not self._running.is_demand)

    @property
    def backlog(self) -> float:
        """Seconds until a demand that is submitted now could begin."""
        with self._lock:
            now = self._catch_up()
            before = 0.0
            if (running := self._running) is not None:
                before = self._end_of(running) - now
                if not running.is_demand:
                    before -= self._chunk * self._chunks_left(running, now)
            return before + sum(self._left(t) for t in self._waiting() if t.is_demand)

    @property
    def stalled(self) -> float:
        """Never: this link does not fail."""
        return 0.0

    def submit(
        self, key: ExpertKey, slot: int, rank: float = DEMAND, progress: Progress | None = None
    ) -> Ticket:
        """Queue a transfer; lower ranks go first, equal ranks in order of arrival."""
        with self._lock:
            now = self._catch_up()
            return self._enter(Ticket(key, slot, rank, progress), now)

    def overtake(self, ticket: Ticket) -> Ticket:
        """Somebody waits for it now: a demand from now on.

        Returns another ticket, to wait for instead, where it had just been given up.
        """
        with self._lock:
            now = self._catch_up()
            if ticket.state is State.CANCELLED:
                return self._enter(Ticket(ticket.key, ticket.slot), now)
            ticket.is_unwanted = False
            if ticket.state in UNDER_WAY and not ticket.is_demand:
                ticket.rank = DEMAND
                if ticket.state in WAITING:
                    self._push(ticket)
            self._aim(now)
            return ticket

    def cancel(self, ticket: Ticket) -> bool:
        """Drop a transfer that is queued or paused; False if it is too late."""
        with self._lock:
            self._drop(ticket, self._catch_up())
            return ticket.state is State.CANCELLED

    def abandon(self, ticket: Ticket) -> bool:
        """The same, but what is under way ends with its chunk, cancelled then."""
        with self._lock:
            now = self._catch_up()
            ticket.is_unwanted = ticket.state is State.RUNNING
            self._drop(ticket, now)
            return ticket.state is State.CANCELLED

    def poll(self) -> None:
        """Bring the states of all tickets up to now."""
        with self._lock:
            self._catch_up()

    def finish(self, ticket: Ticket) -> None:
        """Return when a transfer that was not cancelled is done or given up."""
        asked = self._clock()
        while True:
            with self._lock:
                now = self._catch_up()
                if ticket.state in ENDED:  # what asking took is no waiting
                    self.stats.waited_seconds += max(0.0, ticket.finished_at - asked)
                    return
                until = self._free_at
            self._sleep(until - now)

    def wait(self, ticket: Ticket) -> None:
        """Return when the ticket's transfer is done."""
        self.finish(ticket)

    def close(self) -> None:
        """Nothing runs that would have to end."""

    @property
    def _chunk(self) -> float:
        """Seconds of a chunk."""
        return self.seconds_each / self.chunks

    def _enter(self, ticket: Ticket, now: float) -> Ticket:
        self._push(ticket)
        self._begin_at(max(now, self._free_at), now)
        self._aim(now)
        return ticket

    def _push(self, ticket: Ticket) -> None:
        heapq.heappush(self._heap, (ticket.rank, next(self._order), ticket))

    def _drop(self, ticket: Ticket, now: float) -> None:
        if ticket.state in WAITING:
            ticket.cancel()
        self._aim(now)

    def _waiting(self) -> list[Ticket]:
        """What has not ended; a transfer that overtook has an entry that counts no more."""
        return [t for rank, _, t in self._heap if t.state in WAITING and t.rank == rank]

    def _left(self, ticket: Ticket) -> float:
        """Seconds that a waiting transfer needs."""
        passed = ticket.passed if ticket.state is State.PAUSED else 0.0
        return self.seconds_each - passed

    def _end_of(self, running: Ticket) -> float:
        """When it is done, if nobody takes the link from it."""
        return running.began_at + self.seconds_each

    def _chunks_left(self, running: Ticket, now: float) -> int:
        """Chunks that come after the one that it is at."""
        return max(0, math.floor((self._end_of(running) - now) / self._chunk + ROUNDING))

    def _aim(self, now: float) -> None:
        """Work out when what runs leaves the link: at its end, or with its chunk."""
        running = self._running
        if running is None:
            return
        self._free_at = self._end_of(running)
        is_wanted = not running.is_demand and any(t.is_demand for t in self._waiting())
        if running.is_unwanted or is_wanted:
            self._free_at -= self._chunk * self._chunks_left(running, now)

    def _catch_up(self) -> float:
        """End and begin what has ended and begun by now; returns now."""
        now = self._clock()
        while self._running is not None and self._free_at <= now:
            self._stop()
            self._begin_at(self._free_at, now)
        return now

    def _stop(self) -> None:
        """What runs leaves the link."""
        ticket, now = self._running, self._free_at
        assert ticket is not None
        self._running = None
        left = round((self._end_of(ticket) - now) / self._chunk)  # chunks
        moved = self._bytes * (self.chunks - left) // self.chunks
        self.stats.bytes += moved - ticket.moved
        self.stats.busy_seconds += now - ticket.since
        ticket.moved = moved
        if left and not ticket.is_unwanted:
            ticket.end(now, State.PAUSED)
            self._push(ticket)
            return
        ticket.end(now, State.CANCELLED if left else State.DONE)
        ticket.finished.set()

    def _begin_at(self, start: float, now: float) -> None:
        """Let the best of those that wait begin, if the link is free at `start`, by `now`."""
        if self._running is not None or start > now:
            return
        while self._heap:
            rank, _, ticket = heapq.heappop(self._heap)
            if ticket.state in WAITING and ticket.rank == rank:
                ticket.since = start
                ticket.begin(start)
                self._running, self._free_at = ticket, self._end_of(ticket)
                return
