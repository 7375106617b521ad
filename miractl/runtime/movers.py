"""How one expert gets into a slot: straight from disk, or through pinned memory to a GPU."""

import threading

import torch

from miractl.policy.keys import ExpertKey
from miractl.runtime.arena import SlotArena
from miractl.runtime.source import ExpertSource


class DiskMover:
    """Slots in RAM: the slot is the only copy of the expert outside the file."""

    source = "disk"

    def __init__(self, experts: ExpertSource, arena: SlotArena) -> None:
        self._experts, self._arena = experts, arena

    def move(self, key: ExpertKey, slot: int) -> int:
        """Read one expert into a slot; returns the bytes read."""
        return self._experts.read(key, self._arena[slot])

    def arrive(self, slot: int) -> None:
        """Nothing to wait for: the bytes are there when `move` returns."""


class CudaMover:
    """Slots on a GPU: read into a pinned buffer, then copy on a stream of its own.

    The copy waits for what the computing stream has been given so far, since the slot may still be
    read by it; the computing stream waits for the slot's event, and nothing waits for the device.
    The pinned buffers together take at most `ring_bytes`, and at least one expert.
    """

    source = "host"

    def __init__(self, experts: ExpertSource, arena: SlotArena, ring_bytes: int) -> None:
        self._experts, self._arena = experts, arena
        self._device = next(iter(arena.buffers.values())).device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._compute = torch.cuda.current_stream(self._device)
        self._events: dict[int, torch.cuda.Event] = {}
        views = arena[0]
        each = sum(view.numel() * view.element_size() for view in views.values())
        self._free = [
            {
                name: torch.empty(view.shape, dtype=view.dtype, pin_memory=True)
                for name, view in views.items()
            }
            for _ in range(max(1, ring_bytes // each))
        ]
        self._available = threading.Semaphore(len(self._free))

    def move(self, key: ExpertKey, slot: int) -> int:
        """Read and copy one expert; returns when its pinned buffer can be used again."""
        with self._available:
            pinned = self._free.pop()
            try:
                moved = self._experts.read(key, pinned)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                with torch.cuda.stream(self._stream):
                    self._stream.wait_stream(self._compute)
                    for name, view in self._arena[slot].items():
                        view.copy_(pinned[name], non_blocking=True)
                    event.record(self._stream)
                self._events[slot] = event
                event.synchronize()
            finally:
                self._free.append(pinned)
        return moved

    def arrive(self, slot: int) -> None:
        """The computing stream waits for the slot's copy."""
        torch.cuda.current_stream(self._device).wait_event(self._events[slot])
