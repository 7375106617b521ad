"""A link as decisions see it: its transfers change when they look at it, and the tape has that.

What a look tells: seconds of a transfer, seconds waited in all, and of every transfer whose state
has changed how many were submitted since, its state, when it began and finished, as of the last
look at the clock, and the bytes that it has moved. Nothing at all where everything is as it was.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from miractl.native.residency import State
from miractl.native.residency_layout import Progress
from miractl.policy.keys import ExpertKey
from miractl.runtime.tape import NANOSECONDS, Kind, Numbers, PartedError, Tape, TapedClock, confirm
from miractl.runtime.ticket import DEMAND, ENDED, Ticket
from miractl.runtime.transfer import Transfers, TransferStats

STATES = tuple(State)
STOPPED = (State.PAUSED, *ENDED)
TIMED = (State.PAUSED, State.DONE, State.FAILED)  # when it was cancelled matters to nobody
CHANGE = 5  # numbers of a transfer
ANEW = -1  # turns of a ticket that another has taken the place of


@dataclass(slots=True, eq=False)
class TapedTicket(Ticket):
    """A transfer whose state changes when the link is looked at, and not between."""

    number: int = 0
    real: Any = None  # the Ticket, where there is a link
    seen: int = 0  # turns of that one


class TapedLink:
    """Transfers by another link, None where the tape is read. For the thread that decides."""

    def __init__(
        self, tape: Tape, clock: TapedClock, chunks: int, link: Transfers | None = None
    ) -> None:
        """`chunks` of a transfer, as the link has them."""
        self._tape, self._clock, self._link = tape, clock, link
        self.chunks = chunks
        self._times = [0, 0]  # of a transfer, and waited
        self._submitted = 0
        self._open: dict[int, TapedTicket] = {}  # by number, until they are over

    @property
    def source(self) -> str:
        """The link's."""
        return "recording" if self._link is None else self._link.source

    @property
    def seconds_each(self) -> float:
        """As it was when the link was looked at."""
        return self._times[0] / NANOSECONDS

    @property
    def stats(self) -> TransferStats:
        """The link's; `waited_seconds` as it was when the link was looked at."""
        moved = TransferStats() if self._link is None else self._link.stats
        return replace(moved, waited_seconds=self._times[1] / NANOSECONDS)

    @property
    def stalled(self) -> float:
        """The link's; nothing is decided by it."""
        return 0.0 if self._link is None else self._link.stalled

    @property
    def pending(self) -> tuple[int, int]:
        """As the protocol says."""
        demands, bets = self._tape.take(Kind.PENDING, lambda: list(self._real.pending))
        return demands, bets

    @property
    def backlog(self) -> float:
        """As the protocol says."""
        (found,) = self._tape.take(Kind.BACKLOG, lambda: [round(self._real.backlog * NANOSECONDS)])
        return found / NANOSECONDS

    def submit(
        self, key: ExpertKey, slot: int, rank: float = DEMAND, progress: Progress | None = None
    ) -> Ticket:
        """As the protocol says. Raises PartedError for another expert than recorded."""
        confirm(self._tape, Kind.SUBMIT, *key)
        real = None if self._link is None else self._link.submit(key, slot, rank)
        ticket = TapedTicket(key, slot, rank, progress, number=self._submitted, real=real)
        self._open[ticket.number] = ticket
        self._submitted += 1
        return ticket

    def overtake(self, ticket: Ticket) -> Ticket:
        """As the protocol says; the ticket is the same, whoever carries it out."""
        assert isinstance(ticket, TapedTicket)
        ticket.rank = DEMAND
        if self._link is not None:
            real = self._link.overtake(ticket.real)
            if real is not ticket.real:
                ticket.real, ticket.seen = real, ANEW
        return ticket

    def cancel(self, ticket: Ticket) -> bool:
        """As the protocol says."""
        if self._is_open(ticket):
            self._look(lambda: self._real.cancel(_real(ticket)))
        return ticket.state is State.CANCELLED

    def abandon(self, ticket: Ticket) -> bool:
        """As the protocol says."""
        if self._is_open(ticket):
            self._look(lambda: self._real.abandon(_real(ticket)))
        return ticket.state is State.CANCELLED

    def poll(self) -> None:
        """As the protocol says."""
        self._look(lambda: self._real.poll())

    def finish(self, ticket: Ticket) -> None:
        """As the protocol says."""
        if self._is_open(ticket):
            self._look(lambda: self._real.finish(_real(ticket)))

    def wait(self, ticket: Ticket) -> None:
        """As the protocol says."""
        if self._is_open(ticket):
            self._look(lambda: self._real.wait(_real(ticket)))
        elif self._link is not None:
            self._link.wait(_real(ticket))  # raises what it raised, waits for its stream
        if ticket.state is not State.DONE:
            raise PartedError(f"a transfer that is {ticket.state.name} was waited for")

    def close(self) -> None:
        """As the protocol says."""
        if self._link is not None:
            self._link.close()

    @property
    def _real(self) -> Transfers:
        assert self._link is not None
        return self._link

    def _is_open(self, ticket: Ticket) -> bool:
        return isinstance(ticket, TapedTicket) and ticket.number in self._open

    def _look(self, act: Callable[[], object]) -> None:
        """Do something on the link, then take in what has changed."""

        def ask() -> Numbers:
            act()
            return self._seen()

        if not (seen := self._tape.take(Kind.LOOK, ask)):
            return
        each, waited, *changes = seen
        self._times = [each, waited]
        for at in range(0, len(changes), CHANGE):
            self._change(*changes[at : at + CHANGE])

    def _seen(self) -> Numbers:
        link, clock = self._real, self._clock
        now = link.seconds_each, link.stats.waited_seconds
        seen = [round(seconds * NANOSECONDS) for seconds in now]
        for number, ticket in self._open.items():
            real: Ticket = ticket.real
            turns, state = real.turns, real.state  # first: times are there before their state
            if turns == ticket.seen:
                continue
            ticket.seen, moved = turns, real.moved if state in STOPPED else 0
            began = clock.since(real.began_at) if state in (State.RUNNING, *TIMED) else 0
            finished = clock.since(real.finished_at) if state in TIMED else 0
            seen += (self._submitted - number, STATES.index(state), began, finished, moved)
        return [] if seen == self._times else seen

    def _change(self, back: int, state: int, began: int, finished: int, moved: int) -> None:
        """Raises PartedError for what is no transfer."""
        ticket = self._open.get(self._submitted - back)
        if ticket is None or not 0 <= state < len(STATES):
            raise PartedError(f"no transfer {back} back with a state {state}")
        found, ticket.state = STATES[state], State.QUEUED
        if found is not State.QUEUED:
            ticket.begin(self._clock.time(began))
        if found in STOPPED:
            ticket.moved = moved
            ticket.end(self._clock.time(finished), found)
        if found in ENDED:
            del self._open[ticket.number]


def _real(ticket: Ticket) -> Ticket:
    assert isinstance(ticket, TapedTicket)
    found: Ticket = ticket.real
    return found
