"""Which expert is in which slot, in C: `miractl/policy/slots.py` says what it is asked.

The arrays are numpy's, so that they can be looked at.
"""

import ctypes
import struct
from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from miractl.native.deciding import Deciding
from miractl.native.library import short_calls
from miractl.native.places import Places, SlotPool, width_for
from miractl.native.replay import Admission
from miractl.native.residency_layout import POINTERS, SHARES, Progress, Residency, allocate

Pairs = list[list[int]]  # of expert and slot
_FOUND = struct.Struct("@10i").unpack_from
PASSING, HERE_COUNT = 0, 3  # where they are found


class Role(IntEnum):
    """What an occupied slot is for."""

    RESIDENT = 1
    STAGED = 2
    TRANSIT = 3


class Status(IntEnum):
    """How far a step has come."""

    PLACED = 0  # everybody for whom there is room has a slot
    CALLED = 1  # bets are called in, which comes first
    SHORT = 2  # somebody would get the slot of a bet that is dropped
    UNWANTED = 3  # nobody is looked up: bets on the layer are to be cancelled before
    HERE = 4  # all were residents


HERE = int(Status.HERE)  # looked up once


class State(IntEnum):
    """Life of a transfer."""

    QUEUED = 0
    RUNNING = 1
    PAUSED = 2  # left at a border, to go on
    DONE = 3
    FAILED = 4
    CANCELLED = 5


class BetCounts(NamedTuple):
    """What became of bets, in all; `wasted`: moved, if only in part; `cancelled`: never moved."""

    issued: int
    used: int
    late: int
    wasted: int
    cancelled: int


class ResidencyTable:
    """The table in C, of experts by numbers. Not thread-safe: its owner holds the lock."""

    def __init__(
        self,
        pools: Sequence[SlotPool],
        staging_limit: int,
        worth: NDArray[np.float64],
        admission: Admission,
        activations: NDArray[np.int64],
        heat: tuple[NDArray[np.float64], NDArray[np.float64], float],
    ) -> None:
        """`worth` [layers, experts] is read whenever somebody has to go.

        Slots are numbered through, pool by pool. `activations` [layers, experts] counts tokens.
        `heat`: scores and since when they decay, of that shape, and what 100 ms leave; it is told
        how bets end.

        Raises ValueError for an impossible division, MiractlError without the library.
        """
        self.places = Places(pools, len(worth), staging_limit)
        if worth.dtype != np.float64 or not worth.flags.c_contiguous:
            raise ValueError("Got worth that is no contiguous float64")
        self.pools, self.staging_limit = tuple(pools), staging_limit
        layers, experts = worth.shape
        self.progress = Progress(sum(pool.slots for pool in pools))
        given = {"activations": activations, "score": heat[0], "since": heat[1]}
        self._arrays = allocate(self.pools, self.places, worth, self.progress) | given
        arrays = self._arrays
        self.hits, self.misses = arrays["hits"], arrays["misses"]
        self.in_vain = arrays["in_vain"]
        self.prefetched, self.prefetch_used = arrays["prefetched"], arrays["prefetch_used"]
        self._role, self._slot, self._changed = arrays["role"], arrays["slot"], arrays["changed"]
        self._rows: list[NDArray[np.uint8]] = list(self._role)
        self._struct = Residency(
            *(layers, experts, len(arrays["ways"]), len(self.pools), admission, staging_limit),
            decay=heat[2],
            shared_sets=len(arrays["ways"]),
            width=width_for(arrays["ways"].tolist()),
            **{name: arrays[name].ctypes.data for name in (*POINTERS[1:], *SHARES)},
        )
        self.address = ctypes.addressof(self._struct)
        self.deciding = Deciding(self.address)
        # Of the step, as of the last call: experts that are there with their slots, last those that
        # had `arrived` as bets; absent ones that got a slot, with it; whether others have to wait.
        self.here: Pairs = []
        self.placed: Pairs = []
        self.arrived, self.waits = 0, False
        self.different = 0  # experts that were asked for
        self._found = self._struct.found()
        self._pairs: tuple[Any, ...] = tuple(
            memoryview(arrays[n]) for n in ("here", "placed", "bet")
        )
        # Objects of more than 30 attributes are slow to ask: what is seldom called stays in there.
        self._native = native = short_calls()
        self._note, self._ask, self._place = native.mira_note, native.mira_ask, native.mira_place
        self._end_transit = native.mira_end_transit

    def __len__(self) -> int:
        return len(self.progress.state) - sum(self.free)

    @property
    def ways(self) -> tuple[int, ...]:
        """Residents that each set may have now."""
        return tuple(self._arrays["ways"].tolist())

    @property
    def free(self) -> tuple[int, ...]:
        """Slots of each pool that nobody has."""
        starts = np.cumsum([0, *(pool.slots for pool in self.pools[:-1])])
        return tuple((self._arrays["top"] - starts).tolist())

    @property
    def layer(self) -> int:
        """That of the step under way."""
        return int(self._struct.layer)

    @property
    def evictions(self) -> int:
        """Residents that had to go, in all."""
        return int(self._struct.evictions)

    @property
    def bypassed(self) -> int:
        """Experts that the step needed and that did not become resident, in all."""
        return int(self._struct.bypassed)

    @property
    def bets(self) -> BetCounts:
        """What became of bets, in all."""
        return BetCounts(*(getattr(self._struct, name) for name in BetCounts._fields))

    @property
    def staged(self) -> int:
        """Experts that are staged."""
        count: int = self._struct.staged
        return count

    @property
    def called(self) -> list[int]:
        """Experts of the step that were bet on and are on their way: to be called in."""
        found: list[int] = self._arrays["called"][: self._struct.called_count].tolist()
        return found

    @property
    def unwanted(self) -> list[int]:
        """When there are bets to be cancelled: experts that the routed layer does not want."""
        return self.called

    @property
    def waiting(self) -> list[int]:
        """Experts of the step that have to wait for the next wave."""
        found: list[int] = self._arrays["waiting"][: self._struct.waiting_count].tolist()
        return found

    def dismiss(self, experts: Collection[int]) -> None:
        """Those of the step that wait need no slot: they are computed elsewhere."""
        kept = [expert for expert in self.waiting if expert not in experts]
        self._arrays["waiting"][: len(kept)] = kept
        self._struct.waiting_count = len(kept)
        self.waits = bool(kept)

    def ask_again(self) -> int:
        """The next wave, of those that wait; the Status."""
        return self._look(self._native.mira_ask_again(self.address))

    def place(self, skip: bool = False) -> int:
        """Bring the absent in; `skip`: whoever came short waits. The Status."""
        return self._look(self._place(self.address, skip))

    def _look(self, status: int) -> int:
        """Take in what was found and placed."""
        if status == HERE:
            self.different = different = self._found[HERE_COUNT]
            self.here, self.placed = self._pairs[0][:different].tolist(), []
            self.arrived, self.waits = 0, False
            return status
        found = _FOUND(self._found)
        _, _, _, here, called, absent, placed, waiting, _, self.arrived = found
        self.here = self._pairs[0][:here].tolist() if here else []
        self.placed = self._pairs[1][:placed].tolist() if placed else []
        self.waits, self.different = waiting > 0, here + called + absent
        return status

    def call_in(self, expert: int) -> None:
        """A staged expert of the step is waited for: it is staged no more."""
        self._native.mira_call_in(self.address, expert)

    def bet(self, layer: int, experts: Sequence[int]) -> Pairs:
        """Bet on absent experts, as far as there is room: those staged, with their slots.

        One spare slot stays for a demand; stale bets make way, the oldest first.
        """
        given = np.array(experts, np.uint16)
        self._native.mira_stage(self.address, layer, given.ctypes.data, len(given))
        return self.fresh(self._struct.bet_count)

    def fresh(self, count: int) -> Pairs:
        """The experts that were staged by the last call, so many, with their slots."""
        found: Pairs = self._pairs[2][:count].tolist() if count else []
        return found

    @property
    def room_for_bets(self) -> int:
        """How many bets may be placed, stale ones making way."""
        struct = self._struct
        return max(0, self.staging_limit - int(struct.staged) + int(struct.stale_count))

    def drop(self, key: tuple[int, int]) -> None:
        """A bet ends that nobody has called in: in vain if it was moved."""
        self._native.mira_drop(self.address, *key)

    def release(self, key: tuple[int, int]) -> None:
        """Free the slot of an expert, whatever its role."""
        self._native.mira_release(self.address, *key)

    @property
    def passing(self) -> int:
        """How many are in transit."""
        return self._found[PASSING]

    def end_transit(self) -> None:
        """Free the slots of all who are in transit."""
        end_transit = self._end_transit
        end_transit(self.address)

    def present(self, layer: int) -> NDArray[np.uint8]:
        """Roles of the experts of a layer, 0 without a slot, [experts]; not to be written to."""
        return self._rows[layer]
