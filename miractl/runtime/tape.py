"""What decisions were told by the world, in the order in which they asked: to decide once more.

Whatever decides asks the same clock, link and guesses whether they are real or not. While a server
records, they note what they answer; with a recording, they answer from it, and what was decided
comes out again. Times are whole nanoseconds here, guesses float16, in both cases: a server that
records decides by what it records.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from miractl.errors import MiractlError
from miractl.policy.prediction import Predictor, Probabilities
from miractl.policy.routing import Routed
from miractl.runtime.transfer import DEMAND, State, Ticket, Transfers, TransferStats

NANOSECONDS = 1e9
STATES = tuple(State)
MOVED = (State.DONE, State.FAILED)
Numbers = list[int]


class Kind(IntEnum):
    """What was asked for, and the numbers of the answer."""

    LAYER = 0  # a layer begins: which, and how many of its tokens are computed at once
    CLOCK = 1  # time since the answer before
    SUBMIT = 2  # layer and expert of a transfer, which is named by how many came before
    LOOK = (
        3  # seconds of a transfer, seconds waited, changed transfers; empty where all is as it was
    )
    PENDING = 4  # demands and bets
    BACKLOG = 5  # seconds
    GUESS = 6  # 1 and experts and their probabilities, or 0 where there is none


CHANGE = 4  # numbers: a transfer, its state, and when it began and finished, after the last CLOCK


class PartedError(MiractlError):
    """Something else was asked for than when the tape was written."""


class Tape(Protocol):
    """Passes answers on."""

    def take(self, kind: Kind, ask: Callable[[], Numbers]) -> Numbers:
        """The answer: that of `ask`, or the one that it gave when this was recorded."""


class WrittenTape:
    """Notes every answer in `numbers`: its kind, its length, and itself."""

    def __init__(self) -> None:
        self.numbers: Numbers = []

    def take(self, kind: Kind, ask: Callable[[], Numbers]) -> Numbers:
        """As the protocol says."""
        answer = ask()
        self.numbers += (kind, len(answer), *answer)
        return answer


class ReadTape:
    """Answers from the numbers of a recording."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers

    def take(self, kind: Kind, ask: Callable[[], Numbers]) -> Numbers:
        """As the protocol says. Raises PartedError if something else was asked for then."""
        found = next(self._numbers, None)
        if found != kind:
            raise PartedError(f"asks for {kind.name}, told of {found}")
        count = next(self._numbers, -1)
        answer = [number for _, number in zip(range(count), self._numbers, strict=False)]
        if len(answer) != count:
            raise PartedError(f"{kind.name} ends early")
        return answer

    @property
    def is_over(self) -> bool:
        """Whether everything was asked for; to be asked once."""
        return next(self._numbers, None) is None


def confirm(tape: Tape, kind: Kind, *decided: int) -> None:
    """Note what was decided. Raises PartedError if it was something else when it was recorded."""
    then = tape.take(kind, lambda: list(decided))
    if then != list(decided):
        raise PartedError(f"{kind.name} of {decided}, was {then}")


class TapedClock:
    """A clock of seconds. `clock` is a real one, None where the tape is read."""

    def __init__(self, tape: Tape, clock: Callable[[], float] | None = None) -> None:
        self._tape, self._clock = tape, clock
        self._last = 0

    def __call__(self) -> float:
        """Now."""
        (since,) = self._tape.take(Kind.CLOCK, self._ask)
        self._last += since
        return self.last

    @property
    def last(self) -> float:
        """The time that was told last."""
        return self._last / NANOSECONDS

    def since(self, seconds: float) -> int:
        """A time as it stands on the tape."""
        return round(seconds * NANOSECONDS) - self._last

    def time(self, since: int) -> float:
        """The time of one on the tape."""
        return (self._last + since) / NANOSECONDS

    def _ask(self) -> Numbers:
        assert self._clock is not None
        return [self.since(self._clock())]


@dataclass(slots=True, eq=False)
class TapedTicket(Ticket):
    """A transfer whose state changes when the link is looked at, and not between."""

    number: int = 0
    real: Any = None  # the Ticket, where there is a link


class TapedLink:
    """Transfers by another link, None where the tape is read. For the thread that decides."""

    def __init__(self, tape: Tape, clock: TapedClock, link: Transfers | None = None) -> None:
        self._tape, self._clock, self._link = tape, clock, link
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
    def pending(self) -> tuple[int, int]:
        """As the protocol says."""
        demands, bets = self._tape.take(Kind.PENDING, lambda: list(self._real.pending))
        return demands, bets

    @property
    def backlog(self) -> float:
        """As the protocol says."""
        (found,) = self._tape.take(Kind.BACKLOG, lambda: [round(self._real.backlog * NANOSECONDS)])
        return found / NANOSECONDS

    def submit(self, key: Any, slot: int, rank: float = DEMAND) -> Ticket:
        """As the protocol says. Raises PartedError for another expert than recorded."""
        confirm(self._tape, Kind.SUBMIT, *key)
        real = None if self._link is None else self._link.submit(key, slot, rank)
        ticket = TapedTicket(key, slot, rank=rank, number=self._submitted, real=real)
        self._open[ticket.number] = ticket
        self._submitted += 1
        return ticket

    def overtake(self, ticket: Ticket) -> None:
        """As the protocol says."""
        if ticket.state is State.QUEUED:
            ticket.rank = DEMAND
        if self._link is not None:
            self._link.overtake(_real(ticket))

    def cancel(self, ticket: Ticket) -> bool:
        """As the protocol says."""
        if self._is_open(ticket):
            self._look(lambda: self._real.cancel(_real(ticket)))
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
            raise PartedError(f"a transfer that is {ticket.state.value} was waited for")

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
            state = real.state  # first: times are there before the state that they belong to
            if state is ticket.state:
                continue
            began = clock.since(real.began_at) if state in (State.RUNNING, *MOVED) else 0
            finished = clock.since(real.finished_at) if state in MOVED else 0
            seen += (self._submitted - number, STATES.index(state), began, finished)
        return [] if seen == self._times else seen

    def _change(self, back: int, state: int, began: int, finished: int) -> None:
        """Raises PartedError for what is no transfer."""
        ticket = self._open.get(self._submitted - back)
        if ticket is None or not 0 <= state < len(STATES):
            raise PartedError(f"no transfer {back} back with a state {state}")
        ticket.state = STATES[state]
        if ticket.state in (State.RUNNING, *MOVED):
            ticket.began_at = self._clock.time(began)
        if ticket.state in MOVED:
            ticket.finished_at = self._clock.time(finished)
        if ticket.state is not State.RUNNING:
            del self._open[ticket.number]


def _real(ticket: Ticket) -> Ticket:
    assert isinstance(ticket, TapedTicket)
    found: Ticket = ticket.real
    return found


class TapedGuesses:
    """A predictor's guesses, for one that goes by more than the routing; None where it is read."""

    def __init__(
        self, tape: Tape, mode: str, experts: int, predictor: Predictor | None = None
    ) -> None:
        self.mode, self._tape, self._predictor = mode, tape, predictor
        self._experts = experts

    def observe(self, step: Routed, hidden: Any) -> None:
        """As the protocol says."""
        if self._predictor is not None:
            self._predictor.observe(step, hidden)

    def guess(self, ahead: int) -> Probabilities | None:
        """As the protocol says. Raises PartedError for experts that do not exist."""
        is_one, *numbers = self._tape.take(Kind.GUESS, lambda: self._ask(ahead))
        if not is_one:
            return None
        experts, bits = np.array(numbers, np.int64).reshape(2, -1)
        guess: Probabilities = np.zeros(self._experts)
        if experts.size and not 0 <= experts.min() <= experts.max() < self._experts:
            raise PartedError(f"guesses of {experts.max()}")
        guess[experts] = bits.astype(np.uint16).view(np.float16)
        return guess

    def fade(self) -> None:
        """There is nothing that it has learned."""

    def _ask(self, ahead: int) -> Numbers:
        assert self._predictor is not None
        guess = self._predictor.guess(ahead)
        if guess is None:
            return [0]
        rounded = guess.astype(np.float16)
        experts = np.flatnonzero(rounded)
        return [1, *experts.tolist(), *rounded[experts].view(np.uint16).tolist()]
