"""The streams of a GPU as transfers need them: pinned memory, copies in order, events."""

from typing import Protocol, Self

import torch


class Event(Protocol):
    """A point in the order of copies."""

    def synchronize(self) -> None:
        """Return when everything before it is copied."""

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
    """One stream that copies and one that computes."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Host memory that copies can start from, uint8."""

    def follow_compute(self) -> None:
        """Copies from here on wait for what the computing stream has been given so far."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy of pinned bytes; returns at once."""

    def record(self) -> Event:
        """After all copies that have been queued."""

    def compute_follows(self, event: Event) -> None:
        """What is computed from here on waits for the event."""


class CudaStreams:
    """A copying stream beside the one that torch computes on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copying = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._computing = torch.cuda.current_stream(device)

    def pinned(self, nbytes: int) -> torch.Tensor:
        """As the protocol says."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def follow_compute(self) -> None:
        """As the protocol says."""
        self._copying.wait_stream(self._computing)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """As the protocol says."""
        with torch.cuda.stream(self._copying):
            target.copy_(source, non_blocking=True)

    def record(self) -> Event:
        """As the protocol says."""
        return CudaEvent(self._copying)

    def compute_follows(self, event: Event) -> None:
        """As the protocol says."""
        assert isinstance(event, CudaEvent)
        torch.cuda.current_stream(self._device).wait_event(event.event)
