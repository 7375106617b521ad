"""How one expert gets into a slot: straight from disk, or through pinned memory to a GPU."""

import queue
import threading
from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol

import torch

from miractl.plan.chunks import GPU_CHUNK, chunks_of
from miractl.policy.keys import ExpertKey
from miractl.runtime.arena import SlotArena
from miractl.runtime.host_tier import HostTier
from miractl.runtime.parcels import Landing, Parcels
from miractl.runtime.source import Views
from miractl.runtime.streams import Event, Streams
from miractl.runtime.ticket import Course

LEAST_BUFFERS = 2  # so that one is filled while the other is copied
FIRST = ExpertKey(0, 0)  # all of a shape are stored alike


class Experts(Protocol):
    """What experts are read from: files, or the host tier. As ExpertSource has it."""

    def chunks(self, key: ExpertKey, slot: Views) -> int:
        """Into how many chunks the reading of an expert may be divided, and lose nothing."""

    def course(self, key: ExpertKey, slot: Views, chunks: int) -> Course:
        """Fill a slot with one expert."""

    def read(self, key: ExpertKey, slot: Views) -> int:
        """The same, all at once."""


class Copied(NamedTuple):
    """A copy in its stream."""

    begin: Event
    end: Event


class DiskMover:
    """Slots in RAM: the slot is the only copy of the expert outside the file."""

    source, busy_seconds, seconds = "disk", None, None

    def __init__(self, experts: Experts, arena: SlotArena) -> None:
        self._experts, self._arena = experts, arena
        self.chunks = experts.chunks(FIRST, arena[0])

    def move(self, key: ExpertKey, slot: int, chunks: int) -> Course:
        """Read one expert into a slot."""
        return self._experts.course(key, self._arena[slot], chunks)

    def arrive(self, slot: int) -> None:
        """Nothing to wait for: the bytes are there when the course is over."""


class _GpuMover:
    """Slots on a GPU: bytes in pinned memory are copied into them on a stream of their own.

    The copy waits for what the computing stream has been given so far, since the slot may still be
    read by it; the computing stream waits for the slot's event, and nothing waits for the device.
    What is decoded on the device is copied at once: the decoding waits.

    Copies are queued a chunk ahead of the one that is waited for, so the link has no gaps. Whoever
    wants it meanwhile waits for these two.
    """

    source = "host"

    def __init__(self, parcels: Parcels, streams: Streams) -> None:
        self._parcels, self._streams = parcels, streams
        self._events: dict[int, Event] = {}
        self._one_at_a_time = threading.Lock()
        self.busy_seconds = 0.0  # of the copies that are over, on the device's clock
        self._unpacking = 0.0  # seconds that decoding took

    @property
    def seconds(self) -> float | None:
        """As the protocol says: experts are read first, which the device does not see."""
        return None

    def arrive(self, slot: int) -> None:
        """The computing stream waits for the slot's copy."""
        self._streams.compute_follows(self._events[slot])

    def _send(
        self,
        slot: int,
        expert: torch.Tensor,
        copies: list[Copied],
        can_be_left: Callable[[], bool],
    ) -> Generator[int, None, int]:
        """Copy a whole expert from pinned memory; yields where it may be left.

        `copies` gets those that were queued.
        """
        landing, size = self._parcels.land(slot), len(expert)
        try:
            self._begin(landing)
            for start in range(0, size, GPU_CHUNK):
                end = min(size, start + GPU_CHUNK)
                copies.append(self._copy(landing, expert[start:end], start))
                if start == 0:
                    continue
                self._await(copies[-2])
                if end < size and can_be_left():
                    yield end
            unpacked = self._unpack(slot, landing, copies[-1])
        finally:
            self._parcels.leave(landing)
        self._await(copies[-1])
        self._await_numbers(unpacked)
        return size

    def _begin(self, landing: Landing) -> None:
        if landing.unpack is None:
            self._streams.follow_compute()

    def _copy(self, landing: Landing, part: torch.Tensor, start: int) -> Copied:
        """Copy bytes of an expert, from `start` on, to where they belong."""
        end = start + len(part)
        with self._one_at_a_time:  # or another thread's copy may come between, and be timed twice
            begin = self._streams.record()
            for at, target in landing.places:
                low, high = max(start, at), min(end, at + len(target))
                if low < high:
                    own = part[low - start : high - start]
                    self._streams.copy(target[low - at : high - at], own)
            return Copied(begin, self._streams.record())

    def _unpack(self, slot: int, landing: Landing, last: Copied) -> Copied | None:
        """All bytes are queued: the slot's numbers follow, if they are not what was copied."""
        self._events[slot] = last.end
        if landing.unpack is None:
            return None
        with self._one_at_a_time:
            self._streams.follow_compute()
            begin = self._streams.record()
            self._streams.unpack(landing.unpack)
            end = self._events[slot] = self._streams.record()
        return Copied(begin, end)

    def _await(self, copied: Copied) -> None:
        copied.end.synchronize()
        with self._one_at_a_time:
            self.busy_seconds += copied.end.seconds_since(copied.begin)

    def _await_numbers(self, unpacked: Copied | None) -> None:
        if unpacked is None:
            return
        unpacked.end.synchronize()
        with self._one_at_a_time:
            self._unpacking += unpacked.end.seconds_since(unpacked.begin)


class TierMover(_GpuMover):
    """Records that lie in pinned memory are copied from there."""

    def __init__(self, tier: HostTier, parcels: Parcels, streams: Streams) -> None:
        super().__init__(parcels, streams)
        self._tier = tier
        self.chunks = chunks_of(parcels.largest, GPU_CHUNK)

    @property
    def seconds(self) -> float:
        """Copying and decoding: nothing else is part of a transfer."""
        return self.busy_seconds + self._unpacking

    def move(self, key: ExpertKey, slot: int, chunks: int) -> Course:
        """Copy one expert. Counts the bytes copied."""
        return self._send(slot, self._tier.record(key), [], lambda: self._parcels.is_free)


class CudaMover(_GpuMover):
    """What is read goes through a ring of pinned buffers.

    A buffer holds one expert, the largest, read into the pinned memory itself, where the ring has
    room for two of them. Where it has not, a buffer is half of the ring, and each thread reads an
    expert into memory of its own, from which they are filled in turn.

    A transfer that can be left keeps its buffer: it goes on while no other is free, so that demands
    always find one. What lies in a thread's own memory can be given up, and cannot be left to go on
    later: it is one chunk.
    """

    def __init__(
        self, experts: Experts, parcels: Parcels, ring_bytes: int, streams: Streams
    ) -> None:
        super().__init__(parcels, streams)
        self._experts = experts
        self._size = min(parcels.largest, max(1, ring_bytes // LEAST_BUFFERS))
        self._ring: queue.SimpleQueue[tuple[torch.Tensor, Event | None]] = queue.SimpleQueue()
        for _ in range(max(LEAST_BUFFERS, ring_bytes // self._size)):
            self._ring.put((streams.pinned(self._size), None))
        self._own = threading.local()
        self.chunks = 1
        if self._is_whole:
            pinned, event = self._ring.get()
            self.chunks = experts.chunks(FIRST, parcels.views(pinned, 0)[0])
            self._ring.put((pinned, event))

    @property
    def _is_whole(self) -> bool:
        """Whether a buffer holds an expert."""
        return self._size == self._parcels.largest

    def move(self, key: ExpertKey, slot: int, chunks: int) -> Course:
        """Read and copy one expert; it is over when it is copied. Counts the bytes copied."""
        if self._is_whole:
            return self._move_whole(key, slot, chunks)
        return self._move_by_parts(key, slot)

    def _can_be_left(self) -> bool:
        """Whether whoever comes next finds a buffer and a landing."""
        return not self._ring.empty() and self._parcels.is_free

    def _move_whole(self, key: ExpertKey, slot: int, chunks: int) -> Course:
        pinned = self._take()
        copies: list[Copied] = []
        try:
            views, size = self._parcels.views(pinned, slot)
            for _ in self._experts.course(key, views, chunks):
                if not self._ring.empty():
                    yield 0
            return (yield from self._send(slot, pinned[:size], copies, self._can_be_left))
        finally:
            self._ring.put((pinned, copies[-1].end if copies else None))

    def _move_by_parts(self, key: ExpertKey, slot: int) -> Course:
        if not hasattr(self._own, "expert"):
            self._own.expert = torch.empty(self._parcels.largest, dtype=torch.uint8)
        expert: torch.Tensor = self._own.expert
        views, size = self._parcels.views(expert, slot)
        self._experts.read(key, views)
        landing = self._parcels.land(slot)
        self._begin(landing)
        copies: list[Copied] = []
        try:
            for start in range(0, size, self._size):
                pinned = self._take()
                part = expert[start : min(size, start + self._size)]
                pinned[: len(part)] = part
                copies.append(self._copy(landing, pinned[: len(part)], start))
                self._ring.put((pinned, copies[-1].end))
                if start + self._size < size:
                    yield start + len(part)
            unpacked = self._unpack(slot, landing, copies[-1])
        finally:
            self._parcels.leave(landing)
            for copied in copies:
                self._await(copied)
        self._await_numbers(unpacked)
        return size

    def _take(self) -> torch.Tensor:
        """A buffer whose last copy is over."""
        pinned, event = self._ring.get()
        if event is not None:
            event.synchronize()
        return pinned
