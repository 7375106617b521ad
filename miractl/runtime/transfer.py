"""Bringing experts into slots: what carries it out, and how cache and bets see that."""

from dataclasses import dataclass
from typing import Protocol

from miractl.native.residency_layout import Progress
from miractl.policy.keys import ExpertKey
from miractl.runtime.ticket import DEMAND, Course, Ticket


class Mover(Protocol):
    """Copies one expert into one slot."""

    source: str  # "disk" or "host": where the bytes come from
    chunks: int  # of a transfer, at most that it is divided into

    @property
    def busy_seconds(self) -> float | None:
        """Of the link, by its own clock; None: it has none."""

    @property
    def seconds(self) -> float | None:
        """Of all transfers so far, alone, by that clock; None: it does not see all of one."""

    def move(self, key: ExpertKey, slot: int, chunks: int) -> Course:
        """Carry it out, in no more chunks than that. Raises MiractlError."""

    def arrive(self, slot: int) -> None:
        """Make the computing thread wait until the slot's bytes are there."""


@dataclass(slots=True)
class TransferStats:
    """Totals since the start. `busy_seconds` counts time with at least one transfer under way.

    Of a link with a clock of its own it counts the time of copies, without what was read for them.
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
    def chunks(self) -> int:
        """Of a transfer: at the end of one it can be left."""

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

    def overtake(self, ticket: Ticket) -> Ticket:
        """Somebody waits for it now: a demand from now on.

        Returns another ticket, to wait for instead, where it had just been given up.
        """

    def cancel(self, ticket: Ticket) -> bool:
        """Drop a transfer that is queued or paused; False if it is too late."""

    def abandon(self, ticket: Ticket) -> bool:
        """The same, but what is being carried out ends where it can be left, cancelled then."""

    def poll(self) -> None:
        """Bring the states of all tickets up to now."""

    def finish(self, ticket: Ticket) -> None:
        """Return when a transfer that was not cancelled is done, given up or has failed."""

    def wait(self, ticket: Ticket) -> None:
        """Return when the slot can be computed with; raises what the transfer raised."""

    def close(self) -> None:
        """Stop; what is queued is dropped."""
