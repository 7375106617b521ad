"""A GPU that is not there: copies take injected time, and happen no sooner than they are due."""

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray


class FakeEvent:
    """A point in the order of copies."""

    def __init__(self, device: "FakeDevice", copies: int, at: float) -> None:
        self._device, self.copies, self._at = device, copies, at

    def synchronize(self) -> None:
        self._device.run(self.copies)

    def seconds_since(self, earlier: "FakeEvent") -> float:
        assert self._device.done >= self.copies, "it is not over"
        return self._at - earlier._at


class FakeDevice:
    """Streams whose copies carry out what they were asked when their time has come.

    Bytes leave the source at the end of a copy: a source that is written to sooner shows. Times are
    seconds; `computing` is when the computing stream will have done what it was given. What is
    computed is computed at once, so rows are there when they are fetched.
    """

    def __init__(self, rate: float, locks: bool = True, unpacking: float = 0.0) -> None:
        """`locks`: whether the system pins what it is asked to; `unpacking`: seconds of one."""
        self.rate, self.now, self.computing, self.pinned_bytes = rate, 0.0, 0.0, 0
        self.locks, self.unpacking = locks, unpacking
        self.locked: list[NDArray[np.uint8]] = []
        self.waits: list[int] = []  # copies that the computing stream has waited for
        self.finished: list[float] = []  # of each copy, as it will be
        self.log: list[str] = []  # what the computing thread has asked for, in order
        self.fetched = 0  # rows
        self._copies: list[Callable[[], object]] = []
        self.done, self._free = 0, 0.0
        self._one_at_a_time = threading.RLock()

    def pinned(self, nbytes: int) -> torch.Tensor:
        self.pinned_bytes += nbytes
        return torch.zeros(nbytes, dtype=torch.uint8)

    def lock(self, memory: NDArray[np.uint8]) -> bool:
        self.locked += [memory] if self.locks else []
        return self.locks

    def follow_compute(self) -> None:
        self._free = max(self._free, self.computing)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._queue(source.nbytes / self.rate, partial(target.copy_, source))

    def unpack(self, work: Callable[[], None]) -> None:
        self._queue(self.unpacking, work)

    def _queue(self, seconds: float, work: Callable[[], object]) -> None:
        with self._one_at_a_time:
            self._free = max(self._free, self.now) + seconds
            self.finished.append(self._free)
            self._copies.append(work)

    def record(self) -> FakeEvent:
        return FakeEvent(self, len(self._copies), max(self._free, self.now))

    def compute_follows(self, event: FakeEvent) -> None:
        self.log.append("wait")
        self.waits.append(event.copies)
        self.computing = max(self.computing, self.finished[event.copies - 1])

    def computed(self) -> FakeEvent:
        self.log.append("layer")
        return FakeEvent(self, 0, self.computing)

    def fetch(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        rows: NDArray[np.int64] | None,
        after: FakeEvent,
    ) -> None:
        self.log.append("fetch")
        self.fetched += len(target)
        self.now = max(self.now, after._at)
        target.copy_(source if rows is None else source[torch.from_numpy(rows)])

    def deliver(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.log.append("deliver")
        target.copy_(source)

    def run(self, copies: int) -> None:
        """Let time go on until so many copies are over."""
        with self._one_at_a_time:
            for number in range(self.done, copies):
                self._copies[number]()
                self.now = max(self.now, self.finished[number])
            self.done = max(self.done, copies)
