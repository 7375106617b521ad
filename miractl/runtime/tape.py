"""What decisions were told by the world, in the order in which they asked: to decide once more.

Whatever decides asks the same clock, link and guesses whether they are real or not. While a server
records, they note what they answer; with a recording, they answer from it, and what was decided
comes out again. Times are whole nanoseconds here, guesses float16, in both cases: a server that
records decides by what it records.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from miractl.errors import MiractlError
from miractl.policy.prediction import Predictor, Probabilities
from miractl.policy.routing import Routed

NANOSECONDS = 1e9
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
