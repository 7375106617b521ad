"""The streams of a GPU as transfers need them: pinned memory, copies in order, events."""

import contextlib
import weakref
from collections.abc import Callable
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray


class Event(Protocol):
    """A point in the order of a stream."""

    def synchronize(self) -> None:
        """Return when everything before it is done."""

    def seconds_since(self, earlier: Self) -> float:
        """On the device's clock, between two points that are both over."""


class CudaEvent:
    """An event that knows its time."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def synchronize(self) -> None:
        """As the protocol says."""
        self.event.synchronize()

    def seconds_since(self, earlier: Self) -> float:
        """As the protocol says."""
        milliseconds: float = earlier.event.elapsed_time(self.event)
        return milliseconds / 1000


class Streams(Protocol):
    """One stream that copies experts, one that computes, one that brings back what is computed."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Host memory that copies can start from and end in, uint8; kept until they are over."""

    def lock(self, memory: NDArray[np.uint8]) -> bool:
        """Pin memory for as long as it is there; False where the system refuses."""

    def follow_compute(self) -> None:
        """Copies from here on wait for what the computing stream has been given so far."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy of pinned bytes; returns at once."""

    def unpack(self, work: Callable[[], None]) -> None:
        """Queue torch's operations, which `work` calls, behind all copies so far."""

    def record(self) -> Event:
        """After all copies that have been queued."""

    def compute_follows(self, event: Event) -> None:
        """What is computed from here on waits for the event."""

    def computed(self) -> Event:
        """After what the computing stream has been given so far."""

    def fetch(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        rows: NDArray[np.int64] | None,
        after: Event,
    ) -> None:
        """Bring rows, None: all, to pinned memory; what was computed before `after` is in them.

        Returns when they are there. Waits for nothing that was queued later.
        """

    def deliver(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """The computing stream copies from pinned memory, in its order; returns at once."""


class CudaStreams:
    """Two streams beside the one that torch computes on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._fetching = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._computing = torch.cuda.current_stream(device)

    def pinned(self, nbytes: int) -> torch.Tensor:
        """As the protocol says: torch reuses it only when the copies are over."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def lock(self, memory: NDArray[np.uint8]) -> bool:
        """As the protocol says. torch would round it up to a power of two."""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        address = memory.ctypes.data
        if int(runtime.cudaHostRegister(address, memory.nbytes, 0)) != 0:
            with contextlib.suppress(RuntimeError):  # the next launch is told of it: this one
                torch.zeros(1, device=self._device)
            return False
        weakref.finalize(memory, runtime.cudaHostUnregister, address)
        return True

    def follow_compute(self) -> None:
        """As the protocol says."""
        self._copying.wait_stream(self._computing)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """As the protocol says."""
        with torch.cuda.stream(self._copying):
            target.copy_(source, non_blocking=True)

    def unpack(self, work: Callable[[], None]) -> None:
        """As the protocol says."""
        with torch.cuda.stream(self._copying):
            work()

    def record(self) -> Event:
        """As the protocol says."""
        return CudaEvent(self._copying)

    def compute_follows(self, event: Event) -> None:
        """As the protocol says."""
        assert isinstance(event, CudaEvent)
        torch.cuda.current_stream(self._device).wait_event(event.event)

    def computed(self) -> Event:
        """As the protocol says."""
        return CudaEvent(torch.cuda.current_stream(self._device))

    def fetch(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        rows: NDArray[np.int64] | None,
        after: Event,
    ) -> None:
        """As the protocol says."""
        assert isinstance(after, CudaEvent)
        self._fetching.wait_event(after.event)
        with torch.cuda.stream(self._fetching):
            wanted = source if rows is None else source[index(rows, self._device)]
            target.copy_(wanted, non_blocking=True)
        self._fetching.synchronize()

    def deliver(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """As the protocol says."""
        target.copy_(source, non_blocking=True)


GPUS: dict[str, Callable[[torch.device], Streams]] = {"cuda": CudaStreams}  # by type of device


def index(numbers: NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """Numbers on a device, for which nobody waits."""
    there = torch.from_numpy(numbers)
    return there if device.type == "cpu" else there.pin_memory().to(device, non_blocking=True)
