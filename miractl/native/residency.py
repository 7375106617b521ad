"""Which expert is in which slot, in C: `miractl/policy/slots.py` says what it is asked.

The arrays are numpy's, so that they can be looked at.
"""

import ctypes
from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from miractl.native.library import short_calls
from miractl.native.places import KEPT, Places, SlotPool, width_for
from miractl.native.replay import Admission

Pairs = list[list[int]]  # of expert and slot


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


class State(IntEnum):
    """Life of a transfer."""

    QUEUED = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3
    CANCELLED = 4


class Progress:
    """How far the transfer into each slot has come, of bets: written by whoever carries it out."""

    def __init__(self, slots: int) -> None:
        self.state: NDArray[np.uint8] = np.zeros(slots, np.uint8)
        self.began: NDArray[np.float64] = np.zeros(slots)  # seconds
        self.finished: NDArray[np.float64] = np.zeros(slots)


class BetCounts(NamedTuple):
    """What became of bets, in all; `cancelled`: never moved."""

    issued: int
    used: int
    late: int
    wasted: int
    cancelled: int


COUNTED = ("hits", "misses", "prefetched", "prefetch_used")  # of each expert
_COUNTS = ("here", "called", "absent", "placed", "waiting")
_POINTERS = (
    *("ids", "worth", "set", "pool", "first", "sibling", "reserve", "spare", "held"),
    *("role", "slot", "idle", "top", "transit", "changed", "least", "loser"),
    *("hits", "misses", "prefetched", "prefetch_used", "in_vain", "activations"),
    *("needed", "here", "placed", "called", "absent", "waiting", "staging"),
    *("bet", "stale", "state", "began", "finished", "score", "since"),
)
_SHARES = ("ways", "least_ways", "most_ways", "gain", "loss")  # as a `mira_shares` has them


class _Residency(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_int32) for n in ("layers", "experts", "sets", "pools", "admission")),
        *((n, ctypes.c_int32) for n in ("staging_limit", "staged", "passing", "layer", "count")),
        *((f"{n}_count", ctypes.c_int32) for n in _COUNTS),  # from here to `arrived`: `_window`
        *((n, ctypes.c_int32) for n in ("next", "arrived", "bet_count", "stale_count")),
        *((n, ctypes.c_int64) for n in ("evictions", "bypassed", *BetCounts._fields)),
        *((n, ctypes.c_double) for n in ("now", "decay")),
        *((n, ctypes.c_void_p) for n in _POINTERS),
        *((n, ctypes.c_int32) for n in ("shared_sets", "width", "steps")),
        *((n, ctypes.c_void_p) for n in _SHARES),
    ]


def _window(struct: _Residency, first: str, last: str) -> memoryview:
    """The int32 fields from one to another."""
    kind: Any = _Residency
    start, end = getattr(kind, first).offset, getattr(kind, last).offset + 4
    return memoryview(struct).cast("B")[start:end].cast("i")


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
        self.slots = sum(pool.slots for pool in pools)
        layers, experts = worth.shape
        self.progress = Progress(self.slots)
        given = {"activations": activations, "score": heat[0], "since": heat[1]}
        self._arrays = self._allocate(worth) | given
        arrays = self._arrays
        self.hits, self.misses = arrays["hits"], arrays["misses"]
        self.in_vain = arrays["in_vain"]
        self.prefetched, self.prefetch_used = arrays["prefetched"], arrays["prefetch_used"]
        self._role, self._slot, self._changed = arrays["role"], arrays["slot"], arrays["changed"]
        self._rows: list[NDArray[np.uint8]] = list(self._role)
        self._struct = _Residency(
            *(layers, experts, len(arrays["ways"]), len(self.pools), admission, staging_limit),
            decay=heat[2],
            shared_sets=len(arrays["ways"]),
            width=width_for(arrays["ways"].tolist()),
            **{name: arrays[name].ctypes.data for name in (*_POINTERS[1:], *_SHARES)},
        )
        self.address = ctypes.addressof(self._struct)
        # Of the step, as of the last call: experts that are there with their slots, last those that
        # had `arrived` as bets; absent ones that got a slot, with it; whether others have to wait.
        self.here: Pairs = []
        self.placed: Pairs = []
        self.arrived, self.waits = 0, False
        self._found = _window(self._struct, "here_count", "arrived")
        self._pairs_here, self._pairs_placed, self._pairs_bet = (
            memoryview(arrays[name]) for name in ("here", "placed", "bet")
        )
        native = short_calls()
        self._share, self._note, self._ask = native.mira_share, native.mira_note, native.mira_ask
        self._ask_again, self._place = native.mira_ask_again, native.mira_place
        self._call_in, self._drop = native.mira_call_in, native.mira_drop
        self._stage, self._release = native.mira_stage, native.mira_release
        self._end_transit = native.mira_end_transit

    def _allocate(self, worth: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        (layers, experts), slots, places = worth.shape, self.slots, self.places
        cells, pairs = (layers, experts), (experts, 2)
        ends = np.cumsum([pool.slots for pool in self.pools], dtype=np.int32)
        starts = [end - pool.slots for end, pool in zip(ends, self.pools, strict=True)]
        idle = [np.arange(end - 1, at - 1, -1) for at, end in zip(starts, ends, strict=True)]
        sibling = np.full(layers, layers, np.int32)
        for own in places.members:
            sibling[own[:-1]] = own[1:]
        ways = np.array([ways for pool in self.pools for ways in pool.ways], np.int32)
        reserve = np.array([pool.reserve for pool in self.pools], np.int32)
        return {
            "worth": worth,
            "set": np.array(places.set, np.int32),
            "pool": np.array(places.pool, np.int32),
            "first": np.array([min(own, default=layers) for own in places.members], np.int32),
            "sibling": sibling,
            "reserve": reserve,
            "spare": reserve.copy(),
            "held": np.zeros(len(ways), np.int32),
            "ways": ways,
            "least_ways": np.minimum(ways, KEPT),
            "most_ways": np.array([experts * len(own) for own in places.members], np.int32),
            **{name: np.zeros(len(ways)) for name in ("gain", "loss")},
            "role": np.zeros(cells, np.uint8),
            "slot": np.full(cells, -1, np.int32),
            "idle": np.concatenate(idle).astype(np.int32),
            "top": ends,
            "in_vain": np.zeros(layers, np.int64),
            "transit": np.zeros(slots, np.int32),
            "changed": np.zeros(layers, np.uint8),
            "least": np.full(layers, np.inf),
            "loser": np.zeros(layers, np.int32),
            **{name: np.zeros(cells, np.int64) for name in COUNTED},
            "needed": np.zeros(experts, np.uint8),
            **{name: np.zeros(pairs, np.int32) for name in ("here", "placed", "bet")},
            "staging": np.zeros(slots, np.int32),
            "stale": np.zeros(slots, np.uint8),
            "state": self.progress.state,
            "began": self.progress.began,
            "finished": self.progress.finished,
            **{name: np.zeros(experts, np.int32) for name in ("called", "absent", "waiting")},
        }

    def __len__(self) -> int:
        return self.slots - sum(self.free)

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

    def unwanted(self, count: int) -> list[int]:
        """The first so many bets on the routed layer that have not begun and are not wanted."""
        found: list[int] = self._arrays["called"][:count].tolist()
        return found

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
        return self._look(self._ask_again(self.address))

    def place(self, skip: bool = False) -> int:
        """Bring the absent in; `skip`: whoever came short waits. The Status."""
        return self._look(self._place(self.address, skip))

    def _look(self, status: int) -> int:
        """Take in what was found and placed."""
        here, _, _, placed, waiting, _, self.arrived = self._found.tolist()
        self.here = self._pairs_here[:here].tolist() if here else []
        self.placed = self._pairs_placed[:placed].tolist() if placed else []
        self.waits = waiting > 0
        return status

    def call_in(self, expert: int) -> None:
        """A staged expert of the step is waited for: it is staged no more."""
        self._call_in(self.address, expert)

    def bet(self, layer: int, experts: Sequence[int]) -> Pairs:
        """Bet on absent experts, as far as there is room: those staged, with their slots.

        One spare slot stays for a demand; stale bets make way, the oldest first.
        """
        given = np.array(experts, np.uint16)
        self._stage(self.address, layer, given.ctypes.data, len(given))
        return self.fresh(self._struct.bet_count)

    def fresh(self, count: int) -> Pairs:
        """The experts that were staged by the last call, so many, with their slots."""
        found: Pairs = self._pairs_bet[:count].tolist() if count else []
        return found

    @property
    def room_for_bets(self) -> int:
        """How many bets may be placed, stale ones making way."""
        struct = self._struct
        return max(0, self.staging_limit - int(struct.staged) + int(struct.stale_count))

    def drop(self, key: tuple[int, int]) -> None:
        """A bet ends that nobody has called in: in vain if it was moved."""
        self._drop(self.address, *key)

    def release(self, key: tuple[int, int]) -> None:
        """Free the slot of an expert, whatever its role."""
        self._release(self.address, *key)

    @property
    def passing(self) -> int:
        """How many are in transit."""
        count: int = self._struct.passing
        return count

    def end_transit(self) -> None:
        """Free the slots of all who are in transit."""
        self._end_transit(self.address)

    def present(self, layer: int) -> NDArray[np.uint8]:
        """Roles of the experts of a layer, 0 without a slot, [experts]; not to be written to."""
        return self._rows[layer]
