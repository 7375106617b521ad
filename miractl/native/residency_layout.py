"""The memory of a slot table in C: residency.h has the shapes.

The arrays are numpy's, so that they can be looked at.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from miractl.native.places import KEPT, Places, SlotPool


class Progress:
    """How far the transfer into each slot has come, of bets: written by whoever carries it out."""

    def __init__(self, slots: int) -> None:
        self.state: NDArray[np.uint8] = np.zeros(slots, np.uint8)
        self.began: NDArray[np.float64] = np.zeros(slots)  # seconds
        self.finished: NDArray[np.float64] = np.zeros(slots)
        self.moved: NDArray[np.int64] = np.zeros(slots, np.int64)  # bytes, unless under way


BETS = ("issued", "used", "late", "wasted", "cancelled")  # what became of them
COUNTED = ("hits", "misses", "prefetched", "prefetch_used")  # of each expert
_COUNTS = ("here", "called", "absent", "placed", "waiting")
POINTERS = (
    *("ids", "worth", "set", "pool", "first", "sibling", "spare", "held"),
    *("role", "slot", "idle", "top", "transit", "changed", "least", "loser"),
    *("hits", "misses", "prefetched", "prefetch_used", "in_vain", "activations"),
    *("needed", "here", "placed", "called", "absent", "waiting", "staging"),
    *("bet", "stale", "state", "began", "finished", "moved", "score", "since"),
)
SHARES = ("ways", "least_ways", "most_ways", "gain", "loss")  # as a `mira_shares` has them


class Residency(ctypes.Structure):
    """As residency.h has it."""

    _fields_ = [
        *((n, ctypes.c_int32) for n in ("layers", "experts", "sets", "pools", "admission")),
        *((n, ctypes.c_int32) for n in ("staging_limit", "staged")),
        *((n, ctypes.c_int32) for n in ("passing", "layer", "count")),  # from here: `found`
        *((f"{n}_count", ctypes.c_int32) for n in _COUNTS),
        *((n, ctypes.c_int32) for n in ("next", "arrived", "bet_count", "stale_count")),
        *((n, ctypes.c_int64) for n in ("evictions", "bypassed", *BETS)),
        *((n, ctypes.c_double) for n in ("now", "decay")),
        *((n, ctypes.c_void_p) for n in POINTERS),
        *((n, ctypes.c_int32) for n in ("shared_sets", "width", "steps")),
        *((n, ctypes.c_void_p) for n in SHARES),
    ]

    def found(self) -> memoryview:
        """What is known of a step, int32: from `passing` to `arrived`."""
        kind: Any = Residency
        start, end = kind.passing.offset, kind.arrived.offset + 4
        return memoryview(self).cast("B")[start:end].cast("i")


def allocate(
    pools: Sequence[SlotPool], places: Places, worth: NDArray[np.float64], progress: Progress
) -> dict[str, NDArray[Any]]:
    """The arrays of a table, by name; `worth` [layers, experts] is one of them."""
    (layers, experts), slots = worth.shape, len(progress.state)
    cells, pairs = (layers, experts), (experts, 2)
    ends = np.cumsum([pool.slots for pool in pools], dtype=np.int32)
    starts = [end - pool.slots for end, pool in zip(ends, pools, strict=True)]
    idle = [np.arange(end - 1, at - 1, -1) for at, end in zip(starts, ends, strict=True)]
    sibling = np.full(layers, layers, np.int32)
    for own in places.members:
        sibling[own[:-1]] = own[1:]
    ways = np.array([ways for pool in pools for ways in pool.ways], np.int32)
    return {
        "worth": worth,
        "set": np.array(places.set, np.int32),
        "pool": np.array(places.pool, np.int32),
        "first": np.array([min(own, default=layers) for own in places.members], np.int32),
        "sibling": sibling,
        "spare": np.array([pool.reserve for pool in pools], np.int32),
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
        "state": progress.state,
        "began": progress.began,
        "finished": progress.finished,
        "moved": progress.moved,
        **{name: np.zeros(experts, np.int32) for name in ("called", "absent", "waiting")},
    }
