"""How one expert gets into a slot: straight from disk, or through pinned memory to a GPU."""

import queue
import threading
from collections.abc import Iterator

import torch

from miractl.policy.keys import ExpertKey
from miractl.runtime.arena import SlotArena
from miractl.runtime.source import ExpertSource
from miractl.runtime.streams import Event, Streams

LEAST_CHUNKS = 2  # so that one is filled while the other is copied


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
    """Slots on a GPU: experts go through a ring of pinned chunks, on a stream of their own.

    The copy waits for what the computing stream has been given so far, since the slot may still be
    read by it; the computing stream waits for the slot's event, and nothing waits for the device.
    A chunk is one expert, the largest, read from disk into the pinned memory itself, where the ring
    has room for two of them. Where it has not, a chunk is half of the ring, and each thread reads
    an expert into memory of its own, from which the chunks are filled in turn.
    """

    source = "host"

    def __init__(
        self, experts: ExpertSource, arena: SlotArena, ring_bytes: int, streams: Streams
    ) -> None:
        self._experts, self._arena, self._streams = experts, arena, streams
        self._events: dict[int, Event] = {}
        self._chunk = min(arena.largest, max(1, ring_bytes // LEAST_CHUNKS))
        self._ring: queue.SimpleQueue[tuple[torch.Tensor, Event | None]] = queue.SimpleQueue()
        for _ in range(max(LEAST_CHUNKS, ring_bytes // self._chunk)):
            self._ring.put((streams.pinned(self._chunk), None))
        self._own = threading.local()

    def move(self, key: ExpertKey, slot: int) -> int:
        """Read and copy one expert; returns when it is copied."""
        if self._chunk == self._arena.largest:
            moved, event = self._move_whole(key, slot)
        else:
            moved, event = self._move_chunks(key, slot)
        self._events[slot] = event
        event.synchronize()
        return moved

    def arrive(self, slot: int) -> None:
        """The computing stream waits for the slot's copy."""
        self._streams.compute_follows(self._events[slot])

    def _move_whole(self, key: ExpertKey, slot: int) -> tuple[int, Event]:
        pinned = self._take()
        event = None
        try:
            views, size = self._views(pinned, slot)
            moved = self._experts.read(key, views)
            self._streams.follow_compute()
            event = self._copy(slot, pinned[:size], 0)
        finally:
            self._ring.put((pinned, event))
        return moved, event

    def _move_chunks(self, key: ExpertKey, slot: int) -> tuple[int, Event]:
        if not hasattr(self._own, "expert"):
            self._own.expert = torch.empty(self._arena.largest, dtype=torch.uint8)
        expert: torch.Tensor = self._own.expert
        views, size = self._views(expert, slot)
        moved = self._experts.read(key, views)
        self._streams.follow_compute()
        for start in range(0, size, self._chunk):
            pinned = self._take()
            part = expert[start : min(size, start + self._chunk)]
            pinned[: len(part)] = part
            event = self._copy(slot, pinned[: len(part)], start)
            self._ring.put((pinned, event))
        return moved, event

    def _take(self) -> torch.Tensor:
        """A chunk whose last copy is over."""
        pinned, event = self._ring.get()
        if event is not None:
            event.synchronize()
        return pinned

    def _copy(self, slot: int, part: torch.Tensor, start: int) -> Event:
        """Copy bytes of an expert, from `start` on, to where they belong in a slot."""
        end = start + len(part)
        for at, target in _flat(self._arena[slot]):
            low, high = max(start, at), min(end, at + len(target))
            if low < high:
                self._streams.copy(target[low - at : high - at], part[low - start : high - start])
        return self._streams.record()

    def _views(self, expert: torch.Tensor, slot: int) -> tuple[dict[str, torch.Tensor], int]:
        """The parameters of an expert for a slot in its bytes, and how many these are."""
        views, at = {}, 0
        for name, like in self._arena[slot].items():
            part = expert[at : at + like.nbytes]
            views[name], at = part.view(like.dtype).view(like.shape), at + like.nbytes
        return views, at


def _flat(slot: dict[str, torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    """Where each parameter begins in an expert's bytes, and its own bytes in the slot."""
    at = 0
    for view in slot.values():
        yield at, view.reshape(-1).view(torch.uint8)
        at += view.nbytes
