"""Bringing experts into slots in the background: demands before bets, bets cancellable.

A demand that no worker has taken yet is carried out by the thread that waits for it, so a single
miss never pays for a thread switch. Times are seconds of the injected clock.
"""

import heapq
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from miractl.policy.keys import ExpertKey

DEMAND = -1.0  # sorts before every bet, whose rank is 1 - probability


class Mover(Protocol):
    """Copies one expert into one slot."""

    source: str  # "disk" or "host": where the bytes come from

    def move(self, key: ExpertKey, slot: int) -> int:
        """Carry it out; returns the bytes moved. Raises MiractlError."""

    def arrive(self, slot: int) -> None:
        """Make the computing thread wait until the slot's bytes are there."""


class State(Enum):
    """Life of a transfer."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True, eq=False)
class Ticket:
    """One transfer. Its fields change only under the queue's lock."""

    key: ExpertKey
    slot: int
    state: State = State.QUEUED
    error: BaseException | None = None
    finished_at: float = 0.0  # clock's time, once finished
    finished: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class TransferStats:
    """Totals since the start. `busy_seconds` counts time with at least one transfer under way."""

    bytes: int = 0
    busy_seconds: float = 0.0
    peak_bytes_per_second: float | None = None


class TransferQueue:
    """Worker threads over one priority queue."""

    def __init__(self, mover: Mover, clock: Callable[[], float], workers: int = 2) -> None:
        self.mover, self.stats = mover, TransferStats()
        self._clock = clock
        self._lock = threading.Condition()
        self._heap: list[tuple[float, int, Ticket]] = []
        self._order = itertools.count()
        self._running, self._busy_since, self._closed = 0, 0.0, False
        self._threads = [
            threading.Thread(target=self._work, name=f"miractl-transfer-{n}", daemon=True)
            for n in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, key: ExpertKey, slot: int, rank: float = DEMAND) -> Ticket:
        """Queue a transfer; lower ranks go first, equal ranks in order of arrival."""
        ticket = Ticket(key, slot)
        with self._lock:
            heapq.heappush(self._heap, (rank, next(self._order), ticket))
            self._lock.notify()
        return ticket

    def cancel(self, ticket: Ticket) -> bool:
        """Drop a transfer that has not begun; False if it is too late."""
        with self._lock:
            if ticket.state is State.QUEUED:
                ticket.state = State.CANCELLED
            return ticket.state is State.CANCELLED

    def wait(self, ticket: Ticket) -> None:
        """Return when the slot can be computed with; raises what the transfer raised."""
        with self._lock:
            mine = ticket.state is State.QUEUED
            if mine:
                self._begin(ticket)
        if mine:
            self._carry_out(ticket)
        ticket.finished.wait()
        if ticket.error is not None:
            raise ticket.error
        self.mover.arrive(ticket.slot)

    def close(self) -> None:
        """Stop the workers; what is queued is dropped."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        for thread in self._threads:
            thread.join()

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
        ticket.state = State.RUNNING
        if self._running == 0:
            self._busy_since = self._clock()
        self._running += 1

    def _carry_out(self, ticket: Ticket) -> None:
        began, moved = self._clock(), 0
        try:
            moved = self.mover.move(ticket.key, ticket.slot)
        except BaseException as error:
            ticket.error = error  # raised again by whoever waits for it
        with self._lock:
            now = ticket.finished_at = self._clock()
            ticket.state = State.DONE if ticket.error is None else State.FAILED
            self._account(moved, now - began, now)
        ticket.finished.set()

    def _account(self, moved: int, seconds: float, now: float) -> None:
        self._running -= 1
        self.stats.bytes += moved
        if self._running == 0:
            self.stats.busy_seconds += now - self._busy_since
        if moved and seconds > 0:
            rate = moved / seconds
            self.stats.peak_bytes_per_second = max(rate, self.stats.peak_bytes_per_second or 0.0)
