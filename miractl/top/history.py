"""What the screen knows: the last snapshots, their differences, and whether the server answers.

Pure state without a terminal. A restart of the server begins the history anew, a failure keeps the
last reading and marks it old; both end by themselves with the next snapshots.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from miractl.errors import MiractlError
from miractl.telemetry.client import ServerLoadingError
from miractl.telemetry.health import Verdict, judge
from miractl.telemetry.snapshot import Snapshot
from miractl.telemetry.span import Span, restarted

KEPT = 240  # differences behind the trends
_RECENT = 10.0  # seconds that a restart stays on the screen


class State(StrEnum):
    """What the last question to the server brought."""

    CONNECTING = "connecting"
    LIVE = "live"
    LOADING = "loading"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Reading:
    """One consistent view: a snapshot and everything derived from it."""

    snapshot: Snapshot
    now: Span | None  # since the snapshot before; None for the first one
    start: Span  # since the start of the server
    verdicts: tuple[Verdict, ...]
    hit_rates: tuple[float | None, ...] = ()  # oldest first
    utilizations: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """The connection's state in words."""

    state: State
    note: str = ""


def read(old: Snapshot | None, new: Snapshot) -> Reading:
    """A reading of two snapshots of one run, or of one alone. Verdicts are since the start."""
    start = Span.between(None, new)
    now = Span.between(old, new) if old else None
    return Reading(new, now, start, judge(new, start))


class History:
    """Collects snapshots and failures in the order in which they came.

    Args:
        clock: Seconds, monotonic; says for how long the server has been silent.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spans: deque[Span] = deque(maxlen=KEPT)
        self._heard = clock()
        self._restarted_at: float | None = None
        self._error: MiractlError | None = None
        self.reading: Reading | None = None

    def add(self, snapshot: Snapshot) -> None:
        """A snapshot arrived."""
        old = self.reading.snapshot if self.reading else None
        if old and restarted(old, snapshot):
            self._restarted_at = self._clock()
            self._spans.clear()
            old = None
        self._heard, self._error = self._clock(), None
        if old and snapshot.uptime_seconds == old.uptime_seconds:
            return  # the same answer twice: no time passed, nothing to divide by
        reading = read(old, snapshot)
        if reading.now:
            self._spans.append(reading.now)
        self.reading = Reading(
            reading.snapshot,
            reading.now,
            reading.start,
            reading.verdicts,
            tuple(span.hit_rate for span in self._spans),
            tuple(span.utilization for span in self._spans),
        )

    def fail(self, error: MiractlError) -> None:
        """A question was not answered."""
        self._error = error

    @property
    def link(self) -> Link:
        """The present state of the connection."""
        if isinstance(self._error, ServerLoadingError):
            return Link(State.LOADING, "the server is loading its model")
        if self._error is not None:
            if self.reading is None:
                return Link(State.LOST, self._error.message)
            silent = self._clock() - self._heard
            return Link(State.LOST, f"{self._error.message}; no answer for {silent:.0f} s")
        if self.reading is None:
            return Link(State.CONNECTING, "connecting")
        since = None if self._restarted_at is None else self._clock() - self._restarted_at
        if since is not None and since < _RECENT:
            return Link(State.LIVE, "the server restarted")
        return Link(State.LIVE)
