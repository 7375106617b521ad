"""Bringing experts into slots in the background: demands before bets, bets cancellable.

A demand that no worker has taken yet is carried out by the thread that waits for it, so a single
miss never pays for a thread switch. Times are seconds of the injected clock.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from miractl.native.residency import Progress, State
from miractl.policy.keys import ExpertKey

DEMAND = -1.0  # sorts before every bet, whose rank is 1 - probability
BACKGROUND = 2.0  # sorts behind every bet
SECONDS_RATE = 0.1  # of the average time of a transfer
CLOSE_SECONDS = 2.0  # that workers are waited for: a read from a disk that hangs never ends


class Mover(Protocol):
    """Copies one expert into one slot."""

    source: str  # "disk" or "host": where the bytes come from

    def move(self, key: ExpertKey, slot: int) -> int:
        """Carry it out; returns the bytes moved. Raises MiractlError."""

    def arrive(self, slot: int) -> None:
        """Make the computing thread wait until the slot's bytes are there."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One transfer. Its fields change only under the queue's lock."""

    key: ExpertKey
    slot: int
    rank: float = DEMAND
    progress: Progress | None = None  # to be told of it as well
    state: State = State.QUEUED
    error: BaseException | None = None
    began_at: float = 0.0  # clock's time, once begun
    finished_at: float = 0.0  # clock's time, once finished
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def is_demand(self) -> bool:
        """Whether a step waits for it."""
        return self.rank == DEMAND

    def begin(self, now: float) -> None:
        """It is being carried out."""
        self.began_at, self.state = now, State.RUNNING
        if self.progress is not None:
            self.progress.began[self.slot] = now
            self.progress.state[self.slot] = State.RUNNING

    def end(self, now: float, state: State) -> None:
        """It is done or has failed."""
        self.finished_at, self.state = now, state
        if self.progress is not None:
            self.progress.finished[self.slot] = now
            self.progress.state[self.slot] = state

    def cancel(self) -> None:
        """It will not be carried out: its slot is somebody else's from now on."""
        self.state = State.CANCELLED
        if self.progress is not None:
            self.progress.state[self.slot] = State.CANCELLED


@dataclass(slots=True)
class TransferStats:
    """Totals since the start. `busy_seconds` counts time with at least one transfer under way.

    `waited_seconds` is time that somebody waited for transfers.
    """

    bytes: int = 0
    busy_seconds: float = 0.0
    waited_seconds: float = 0.0
    peak_bytes_per_second: float | None = None


class Transfers(Protocol):
    """Experts on their way into slots, as the cache and the bets see them."""

    @property
    def stats(self) -> TransferStats:
        """Totals, as they are now."""

    @property
    def source(self) -> str:
        """Where the bytes come from: "disk", "host", or "emulated"."""

    @property
    def seconds_each(self) -> float:
        """Of a transfer that shares the link with nobody; 0: not known yet."""

    @property
    def pending(self) -> tuple[int, int]:
        """Demands and bets that are not finished."""

    @property
    def backlog(self) -> float:
        """Seconds until a demand that is submitted now could begin."""

    @property
    def stalled(self) -> float:
        """Seconds that transfers have been under way and none has come back."""

    def submit(
        self, key: ExpertKey, slot: int, rank: float = DEMAND, progress: Progress | None = None
    ) -> Ticket:
        """Queue a transfer; lower ranks go first, equal ranks in order of arrival.

        `progress` is told what becomes of it.
        """

    def overtake(self, ticket: Ticket) -> None:
        """Somebody waits for it now: what has not begun becomes a demand."""

    def cancel(self, ticket: Ticket) -> bool:
        """Drop a transfer that has not begun; False if it is too late."""

    def poll(self) -> None:
        """Bring the states of all tickets up to now."""

    def finish(self, ticket: Ticket) -> None:
        """Return when a transfer that was not cancelled is done or has failed."""

    def wait(self, ticket: Ticket) -> None:
        """Return when the slot can be computed with; raises what the transfer raised."""

    def close(self) -> None:
        """Stop; what is queued is dropped."""


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
        self._finished_at = 0.0  # the last one
        self._pending = {True: 0, False: 0}  # demands and bets that are queued or running
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
        ticket = Ticket(key, slot, rank, progress)
        with self._lock:
            self._pending[ticket.is_demand] += 1
            heapq.heappush(self._heap, (rank, next(self._order), ticket))
            self._lock.notify()
        return ticket

    def overtake(self, ticket: Ticket) -> None:
        """Somebody waits for it now: what has not begun becomes a demand."""
        with self._lock:
            if ticket.state is State.QUEUED and not ticket.is_demand:
                self._pending[False] -= 1
                self._pending[True] += 1
                ticket.rank = DEMAND  # its first entry will be passed over
                heapq.heappush(self._heap, (DEMAND, next(self._order), ticket))

    def cancel(self, ticket: Ticket) -> bool:
        """Drop a transfer that has not begun; False if it is too late."""
        with self._lock:
            if ticket.state is State.QUEUED:
                ticket.cancel()
                self._pending[ticket.is_demand] -= 1
            return ticket.state is State.CANCELLED

    @property
    def pending(self) -> tuple[int, int]:
        """Demands and bets that are not finished; as good as what a lock would tell."""
        return self._pending[True], self._pending[False]

    @property
    def source(self) -> str:
        """The mover's."""
        return self.mover.source

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
            return self._clock() - max(self._busy_since, self._finished_at)

    def poll(self) -> None:
        """Nothing to do: the workers keep the states."""

    def finish(self, ticket: Ticket) -> None:
        """Return when a transfer that was not cancelled is done or has failed."""
        ticket.finished.wait()

    def wait(self, ticket: Ticket) -> None:
        """Return when the slot can be computed with; raises what the transfer raised."""
        if ticket.state is State.DONE:
            self.mover.arrive(ticket.slot)
            return
        asked = self._clock()
        with self._lock:
            mine = ticket.state is State.QUEUED
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
        """Stop the workers; what is queued is dropped, and a worker that hangs is left behind."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (ticket := self._next()) is not None:
            self._carry_out(ticket)

    def _next(self) -> Ticket | None:
        with self._lock:
            while not self._closed:
                while self._heap:
                    ticket = heapq.heappop(self._heap)[2]
                    if ticket.state is State.QUEUED:
                        self._begin(ticket)
                        return ticket
                self._lock.wait()
        return None

    def _begin(self, ticket: Ticket) -> None:
        ticket.begin(self._clock())
        if self._running == 0:
            self._busy_since = ticket.began_at
        self._running += 1

    def _carry_out(self, ticket: Ticket) -> None:
        moved = 0
        try:
            moved = self.mover.move(ticket.key, ticket.slot)
        except BaseException as error:
            ticket.error = error  # raised again by whoever waits for it
        try:
            with self._lock:
                ticket.end(self._clock(), State.FAILED if ticket.error else State.DONE)
                self._account(moved, ticket)
        finally:
            ticket.finished.set()  # whatever happens, nobody waits for ever

    def _account(self, moved: int, ticket: Ticket) -> None:
        now, seconds = ticket.finished_at, ticket.finished_at - ticket.began_at
        # Those that were under way together have shared the link: each had it since the last.
        own = now - max(ticket.began_at, self._finished_at)
        rate = SECONDS_RATE if self.seconds_each else 1.0
        if ticket.error is None:
            self.seconds_each += rate * (own - self.seconds_each)
        self._finished_at = now
        self._pending[ticket.is_demand] -= 1
        self._running -= 1
        self.stats.bytes += moved
        if self._running == 0:
            self.stats.busy_seconds += now - self._busy_since
        if moved and seconds > 0:
            rate = moved / seconds
            self.stats.peak_bytes_per_second = max(rate, self.stats.peak_bytes_per_second or 0.0)
