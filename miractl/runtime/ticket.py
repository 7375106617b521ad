"""One transfer of an expert into a slot, from its demand or bet to its end."""

import threading
from collections.abc import Generator
from dataclasses import dataclass, field

from miractl.native.residency import State
from miractl.native.residency_layout import Progress
from miractl.policy.keys import ExpertKey

DEMAND = -1.0  # sorts before every bet, whose rank is 1 - probability
BET = 0.0  # the kind of every rank between them
BACKGROUND = 2.0  # sorts behind every bet
WAITING = (State.QUEUED, State.PAUSED)  # nobody carries it out
UNDER_WAY = (*WAITING, State.RUNNING)
ENDED = (State.DONE, State.FAILED, State.CANCELLED)

# A transfer as it is carried out: yields the bytes moved so far wherever it can be left, returns
# all. What is closed before its end has moved no more than it said.
Course = Generator[int, None, int]


def carry_out(course: Course) -> int:
    """Go on to the end; returns the bytes moved. Raises what the course raises."""
    while True:
        try:
            next(course)
        except StopIteration as end:
            return int(end.value)


class Finish:
    """Waited for by any number of threads until it is `set`, once.

    An Event does more, and takes microseconds to make, of which a decision has few.
    """

    __slots__ = ("_ahead",)

    def __init__(self) -> None:
        self._ahead = threading.Lock()  # held until then
        self._ahead.acquire()

    def set(self) -> None:
        """Whoever waits goes on."""
        self._ahead.release()

    def wait(self, timeout: float = -1.0) -> bool:
        """Return when it is set; False if it is not within `timeout` seconds, below 0: for ever."""
        if not self._ahead.acquire(timeout=timeout):
            return False
        self._ahead.release()
        return True


@dataclass(slots=True, eq=False)
class Ticket:
    """One transfer. Its fields change only under the queue's lock."""

    key: ExpertKey
    slot: int
    rank: float = DEMAND
    progress: Progress | None = None  # to be told of it as well
    state: State = State.QUEUED
    error: BaseException | None = None
    began_at: float = 0.0  # clock's time, once begun; pauses are left out: so much later
    finished_at: float = 0.0  # clock's time, once finished or paused
    moved: int = 0  # bytes so far
    turns: int = 0  # changes of state
    is_unwanted: bool = False  # to be given up where it can be left
    since: float = 0.0  # clock's time at which it was begun or taken up again
    own: float = 0.0  # seconds before that in which the link was its own
    course: Course | None = None  # of one that has begun, where somebody carries it out
    finished: Finish = field(default_factory=Finish)

    @property
    def is_demand(self) -> bool:
        """Whether a step waits for it."""
        return self.rank == DEMAND

    @property
    def kind(self) -> float:
        """DEMAND, BET or BACKGROUND."""
        return self.rank if self.rank in (DEMAND, BACKGROUND) else BET

    @property
    def passed(self) -> float:
        """Seconds that a transfer which is not under way has had the link."""
        return self.finished_at - self.began_at

    def begin(self, now: float) -> None:
        """It is being carried out, for the first time or again."""
        if self.state is State.PAUSED:
            now -= self.passed
        self.began_at = now
        if self.progress is not None:
            self.progress.began[self.slot] = now
        self._become(State.RUNNING)

    def end(self, now: float, state: State) -> None:
        """It is paused or given up, it is done or has failed."""
        self.finished_at = now
        if self.progress is not None:
            self.progress.finished[self.slot] = now
            self.progress.moved[self.slot] = self.moved
        self._become(state)

    def cancel(self) -> None:
        """It will not be carried out: its slot is somebody else's from now on."""
        self._become(State.CANCELLED)

    def _become(self, state: State) -> None:
        """The state comes last: times and bytes are there before it."""
        self.state = state
        if self.progress is not None:
            self.progress.state[self.slot] = state
        self.turns += 1
