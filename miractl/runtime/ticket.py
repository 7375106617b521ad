"""One transfer of an expert into a slot, from its demand or bet to its end."""

import threading
from dataclasses import dataclass, field

from miractl.native.residency import State
from miractl.native.residency_layout import Progress
from miractl.policy.keys import ExpertKey

DEMAND = -1.0  # sorts before every bet, whose rank is 1 - probability
BACKGROUND = 2.0  # sorts behind every bet


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
    began_at: float = 0.0  # clock's time, once begun
    finished_at: float = 0.0  # clock's time, once finished
    finished: Finish = field(default_factory=Finish)

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
