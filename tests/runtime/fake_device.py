"""A GPU that is not there: copies take injected time, and happen no sooner than they are due."""

from collections.abc import Callable
from functools import partial

import torch


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
    seconds; `computing` is when the computing stream will have done what it was given.
    """

    def __init__(self, rate: float) -> None:
        self.rate, self.now, self.computing, self.pinned_bytes = rate, 0.0, 0.0, 0
        self.waits: list[int] = []  # copies that the computing stream has waited for
        self.finished: list[float] = []  # of each copy, as it will be
        self._copies: list[Callable[[], object]] = []
        self.done, self._free = 0, 0.0

    def pinned(self, nbytes: int) -> torch.Tensor:
        self.pinned_bytes += nbytes
        return torch.zeros(nbytes, dtype=torch.uint8)

    def follow_compute(self) -> None:
        self._free = max(self._free, self.computing)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._free = max(self._free, self.now) + source.nbytes / self.rate
        self.finished.append(self._free)
        self._copies.append(partial(target.copy_, source))

    def record(self) -> FakeEvent:
        return FakeEvent(self, len(self._copies), max(self._free, self.now))

    def compute_follows(self, event: FakeEvent) -> None:
        self.waits.append(event.copies)
        self.computing = max(self.computing, self.finished[event.copies - 1])

    def run(self, copies: int) -> None:
        """Let time go on until so many copies are over."""
        for number in range(self.done, copies):
            self._copies[number]()
            self.now = max(self.now, self.finished[number])
        self.done = max(self.done, copies)
