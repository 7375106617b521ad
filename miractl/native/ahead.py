"""Bets of a runtime, in C: settled and placed by times as they are measured. ahead.h says how."""

import ctypes
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from miractl.native.bets import Bets, Moment
from miractl.native.library import short_calls
from miractl.native.residency import Pairs, ResidencyTable
from miractl.native.teller import Teller


class Times(ctypes.Structure):
    """What is known of time when a layer is routed, in seconds of one clock.

    `began`: when it all began; `waited` for transfers in all; `transfer` of one expert, 0 where
    nothing is to be learned; `demands` and `under_way` are transfers not finished, for demands and
    for bets; `spent`: what computing the `computed` experts took that the layer before had; `took`:
    to bet. `prize` is told: what bets on a layer save, on average, and no more than it would wait
    without.
    """

    now: float
    waited: float
    transfer: float
    demands: int
    under_way: int
    prompt: bool
    spent: float
    computed: int
    took: float
    prize: float
    at: Moment

    _fields_ = (
        *((name, ctypes.c_double) for name in ("now", "transfer")),
        *((name, ctypes.c_int32) for name in ("demands", "under_way")),
        *((name, ctypes.c_double) for name in ("waited", "spent")),
        *((name, ctypes.c_int32) for name in ("computed", "prompt")),
        *((name, ctypes.c_double) for name in ("took", "began", "stall", "prize", "deciding")),
        *((name, ctypes.c_int32) for name in ("skips", "skipped")),
        *((name, ctypes.c_int32) for name in ("horizon", "layers", "last", "was_prompt", "tried")),
        *((name, ctypes.c_double) for name in ("last_now", "last_waited")),
        ("pace", ctypes.c_void_p),
        *((name, ctypes.c_double * 2) for name in ("each", "stalls", "prizes")),
        *((name, ctypes.c_void_p) for name in ("bets", "table")),
        ("at", Moment),
    )


PRIZE = 1.0  # seconds, to begin with: some hundred layers are tried
_begin = struct.Struct("@2d2i").pack_into  # the first of them


class Ahead:
    """Bets on the layers after the one that is routed, on one table. Its owner holds the lock.

    They are settled when the table decides on a layer.
    """

    def __init__(
        self, bets: Bets, table: ResidencyTable, horizon: int, confidence: float, began: float
    ) -> None:
        """`confidence`: candidates are the likeliest experts whose share of all guesses it is."""
        self.bets, self.table = bets, table
        layers = bets.state.layers
        self.pace: NDArray[np.float64] = np.full((2, layers), -1.0)  # below 0: not known
        at = Moment(confidence=confidence)
        self.times = Times(took=-1.0, began=began, horizon=horizon, layers=layers, last=-1, at=at)
        self.times.prizes[:] = (PRIZE, PRIZE)
        self.times.pace = self.pace.ctypes.data
        self.times.bets, self.times.table = bets.address, table.address
        self._memory = memory = memoryview(self.times).cast("B")
        fields: Any = Times
        at_fields: Any = Moment
        self._took = memory[fields.took.offset :][:8].cast("d")
        self._skips = memory[fields.skips.offset :][:4].cast("i")
        # Of the bets placed last, in seconds: what a layer computes for that waits for nothing.
        self.compute = memory[fields.at.offset + at_fields.compute.offset :][:8].cast("d")
        native = short_calls()
        self._place, self._follow = native.mira_ahead_place, native.mira_ahead_follow
        self._address = ctypes.addressof(self.times)
        table.deciding.bet_by(self._address)
        self._known, self._known_at, self._told = np.zeros(0), 0, np.zeros(0)

    @property
    def skips(self) -> bool:
        """Whether to bet takes longer than it saves, on average."""
        return self._skips[0] > 0

    @property
    def took(self) -> float:
        """Seconds that it took to decide on the bets of the last layer."""
        return self.times.took

    @took.setter
    def took(self, seconds: float) -> None:
        self._took[0] = seconds

    def begin(self, now: float, transfer: float, demands: int, under_way: int) -> None:
        """What is known before bets are placed, as Times has it."""
        _begin(self._memory, 0, now, transfer, demands, under_way)

    def place(self, ahead: int, guesses: NDArray[np.float64]) -> Pairs:
        """Bet on the layer so many `ahead`, nearer ones first: who is staged, with his slot.

        guesses [experts]: probabilities.
        """
        if guesses is not self._known:  # numpy is slow to tell an address
            self._told = np.ascontiguousarray(guesses, np.float64)
            self._known, self._known_at = guesses, self._told.ctypes.data
        place = self._place
        count = place(self._address, ahead, self._known_at)
        return self.table.fresh(count) if count else []

    def follow(self, teller: Teller[Any], ids: int) -> Pairs:
        """Let a teller follow the routed layer, int64 [k] at address `ids`; bet by what it tells.

        It follows though bets are skipped. Raises ValueError for experts that do not exist.
        """
        follow = self._follow
        count = follow(self._address, teller.address, ids)
        if count < 0:
            raise ValueError(f"Got experts that are none of {self.bets.state.experts}")
        return self.table.fresh(count) if count else []
