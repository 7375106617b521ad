"""How one expert gets into a slot: straight from disk, or through pinned memory to a GPU."""

import queue
import threading
from collections.abc import Iterator
from typing import NamedTuple

import torch

from miractl.plan.chunks import GPU_CHUNK
from miractl.policy.keys import ExpertKey
from miractl.runtime.arena import SlotArena
from miractl.runtime.source import ExpertSource
from miractl.runtime.streams import Event, Streams
from miractl.runtime.ticket import Course

LEAST_BUFFERS = 2  # so that one is filled while the other is copied
FIRST = ExpertKey(0, 0)  # all of a shape are stored alike


class Copied(NamedTuple):
    """A copy in its stream."""

    begin: Event
    end: Event


class DiskMover:
    """Slots in RAM: the slot is the only copy of the expert outside the file."""

    source, busy_seconds = "disk", None

    def __init__(self, experts: ExpertSource, arena: SlotArena) -> None:
        self._experts, self._arena = experts, arena
        self.chunks = experts.chunks(FIRST, arena[0])

    def move(self, key: ExpertKey, slot: int, chunks: int) -> Course:
        """Read one expert into a slot."""
        return self._experts.course(key, self._arena[slot], chunks)

    def arrive(self, slot: int) -> None:
        """Nothing to wait for: the bytes are there when the course is over."""


class CudaMover:
    """Slots on a GPU: experts go through a ring of pinned buffers, on a stream of their own.

    The copy waits for what the computing stream has been given so far, since the slot may still be
    read by it; the computing stream waits for the slot's event, and nothing waits for the device.
    A buffer holds one expert, the largest, read from disk into the pinned memory itself, where the
    ring has room for two of them. Where it has not, a buffer is half of the ring, and each thread
    reads an expert into memory of its own, from which they are filled in turn.

    Copies are queued a chunk ahead of the one that is waited for, so the link has no gaps. Whoever
    wants it meanwhile waits for these two. A transfer that can be left keeps its buffer: it goes on
    while no other is free, so that demands always find one. What lies in a thread's own memory can
    be given up, and cannot be left to go on later: it is one chunk.
    """

    source = "host"

    def __init__(
        self, experts: ExpertSource, arena: SlotArena, ring_bytes: int, streams: Streams
    ) -> None:
        self._experts, self._arena, self._streams = experts, arena, streams
        self._events: dict[int, Event] = {}
        self._size = min(arena.largest, max(1, ring_bytes // LEAST_BUFFERS))
        self._ring: queue.SimpleQueue[tuple[torch.Tensor, Event | None]] = queue.SimpleQueue()
        for _ in range(max(LEAST_BUFFERS, ring_bytes // self._size)):
            self._ring.put((streams.pinned(self._size), None))
        self._own, self._one_at_a_time = threading.local(), threading.Lock()
        self.busy_seconds = 0.0  # of the copies that are over, on the device's clock
        self.chunks = 1
        if self._is_whole:
            pinned, event = self._ring.get()
            self.chunks = experts.chunks(FIRST, self._views(pinned, 0)[0])
            self._ring.put((pinned, event))

    @property
    def _is_whole(self) -> bool:
        """Whether a buffer holds an expert."""
        return self._size == self._arena.largest

    def move(self, key: ExpertKey, slot: int, chunks: int) -> Course:
        """Read and copy one expert; it is over when it is copied. Counts the bytes copied."""
        if self._is_whole:
            return self._move_whole(key, slot, chunks)
        return self._move_by_parts(key, slot)

    def arrive(self, slot: int) -> None:
        """The computing stream waits for the slot's copy."""
        self._streams.compute_follows(self._events[slot])

    def _move_whole(self, key: ExpertKey, slot: int, chunks: int) -> Course:
        pinned = self._take()
        last: Copied | None = None
        try:
            views, size = self._views(pinned, slot)
            for _ in self._experts.course(key, views, chunks):
                if not self._ring.empty():
                    yield 0
            self._streams.follow_compute()
            for start in range(0, size, GPU_CHUNK):
                before = last
                end = min(size, start + GPU_CHUNK)
                last = self._copy(slot, pinned[start:end], start)
                if before is not None:
                    self._await(before)
                    if end < size and not self._ring.empty():
                        yield end
        finally:
            self._ring.put((pinned, last.end if last else None))
        assert last is not None
        self._events[slot] = last.end
        self._await(last)
        return size

    def _move_by_parts(self, key: ExpertKey, slot: int) -> Course:
        if not hasattr(self._own, "expert"):
            self._own.expert = torch.empty(self._arena.largest, dtype=torch.uint8)
        expert: torch.Tensor = self._own.expert
        views, size = self._views(expert, slot)
        self._experts.read(key, views)
        self._streams.follow_compute()
        copies: list[Copied] = []
        try:
            for start in range(0, size, self._size):
                pinned = self._take()
                part = expert[start : min(size, start + self._size)]
                pinned[: len(part)] = part
                copies.append(self._copy(slot, pinned[: len(part)], start))
                self._events[slot] = copies[-1].end
                self._ring.put((pinned, copies[-1].end))
                if start + self._size < size:
                    yield start + len(part)
        finally:
            for copied in copies:
                self._await(copied)
        return size

    def _await(self, copied: Copied) -> None:
        copied.end.synchronize()
        with self._one_at_a_time:
            self.busy_seconds += copied.end.seconds_since(copied.begin)

    def _take(self) -> torch.Tensor:
        """A buffer whose last copy is over."""
        pinned, event = self._ring.get()
        if event is not None:
            event.synchronize()
        return pinned

    def _copy(self, slot: int, part: torch.Tensor, start: int) -> Copied:
        """Copy bytes of an expert, from `start` on, to where they belong in a slot."""
        end = start + len(part)
        with self._one_at_a_time:  # or another thread's copy may come between, and be timed twice
            begin = self._streams.record()
            for at, target in _flat(self._arena[slot]):
                low, high = max(start, at), min(end, at + len(target))
                if low < high:
                    own = part[low - start : high - start]
                    self._streams.copy(target[low - at : high - at], own)
            return Copied(begin, self._streams.record())

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
