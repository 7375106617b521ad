"""What an expert is on its way to a device: a slot's numbers, or a record that is decoded there.

A record of codes is a quarter of the numbers that it stands for, and the link takes it as it lies.
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from miractl.checkpoint.record import Record
from miractl.runtime.arena import SlotArena
from miractl.runtime.decode import dequantized
from miractl.runtime.packed import RECORD, fill_slot
from miractl.runtime.source import Views


@dataclass(frozen=True, slots=True)
class Landing:
    """Where the bytes of one transfer go.

    `places` on the device, uint8, and which byte of the expert each begins with. `unpack` makes the
    slot's numbers of them, by torch's operations; None: these are the slot's.
    """

    places: tuple[tuple[int, torch.Tensor], ...]
    unpack: Callable[[], None] | None = None
    room: torch.Tensor | None = None


class Parcels(Protocol):
    """Experts as bytes. Thread-safe."""

    @property
    def largest(self) -> int:
        """Bytes of the largest."""

    @property
    def is_free(self) -> bool:
        """Whether another transfer finds a landing at once."""

    def views(self, memory: torch.Tensor, slot: int) -> tuple[Views, int]:
        """What a source fills so that the bytes of an expert are in `memory`; how many they are."""

    def land(self, slot: int) -> Landing:
        """For a transfer into a slot; waits until there is one. To be left by who has it."""

    def leave(self, landing: Landing) -> None:
        """All has been queued that reads or writes there."""


class Numbers:
    """An expert is the bytes of its slot."""

    is_free = True

    def __init__(self, arena: SlotArena) -> None:
        self._arena, self.largest = arena, arena.largest

    def views(self, memory: torch.Tensor, slot: int) -> tuple[Views, int]:
        """As the protocol says."""
        views, at = {}, 0
        for name, like in self._arena[slot].items():
            part = memory[at : at + like.nbytes]
            views[name], at = part.view(like.dtype).view(like.shape), at + like.nbytes
        return views, at

    def land(self, slot: int) -> Landing:
        """As the protocol says."""
        places, at = [], 0
        for view in self._arena[slot].values():
            places.append((at, view.reshape(-1).view(torch.uint8)))
            at += view.nbytes
        return Landing(tuple(places))

    def leave(self, landing: Landing) -> None:
        """As the protocol says."""


class Records:
    """An expert is its record, which has a room on the device until it is decoded."""

    def __init__(self, arena: SlotArena, record: Record, rooms: int) -> None:
        """`record` in the layout of the CPU kernels."""
        assert record.quantized is not None
        self._arena, self.largest, self._quantized = arena, record.nbytes, record.quantized
        device = next(iter(arena[0].values())).device
        self._rooms: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
        for _ in range(rooms):
            self._rooms.put(torch.empty(record.nbytes, dtype=torch.uint8, device=device))

    @property
    def is_free(self) -> bool:
        """As the protocol says."""
        return not self._rooms.empty()

    def views(self, memory: torch.Tensor, slot: int) -> tuple[Views, int]:
        """As the protocol says."""
        return {RECORD: memory[: self.largest]}, self.largest

    def land(self, slot: int) -> Landing:
        """As the protocol says."""
        room = self._rooms.get()

        def unpack() -> None:
            fill_slot(self._quantized, room, self._arena[slot], dequantized)

        return Landing(((0, room),), unpack, room)

    def leave(self, landing: Landing) -> None:
        """As the protocol says: whoever comes next is copied after what was queued."""
        assert landing.room is not None
        self._rooms.put(landing.room)
