"""The heat score of a runtime, in C, on the arrays of the table that keeps it."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from miractl.native.library import short_calls

Floats = NDArray[np.float64]
_ARRAYS = ("score", "since", "counts", "used", "worth")


class HeatRating(ctypes.Structure):
    """What the library is told of the heat: brain.h says what is what."""

    now: float
    threshold: float
    stamp: float

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "experts")),
        *((name, ctypes.c_double) for name in ("decay", "now", "threshold", "stamp")),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
    )

    def __init__(
        self,
        decay: float,
        score: Floats,
        since: Floats,
        counts: NDArray[np.int64],
        used: Floats,
        worth: Floats,
    ) -> None:
        """Arrays [layers, experts], all of which it writes to.

        Raises MiractlError without the library.
        """
        self._arrays = score, since, counts, used, worth
        pointers = (array.ctypes.data for array in self._arrays)
        layers, experts = score.shape
        super().__init__(layers, experts, decay, 0.0, 0.0, 0.0, *pointers)
        self.address, self._record = ctypes.addressof(self), short_calls().mira_heat_record

    def record(self, layer: int, ids: int, count: int) -> bool:
        """A layer's step activates int64 at address `ids`; False, and nothing done, for unknown."""
        return not self._record(self.address, layer, ids, count)


class _Warming(ctypes.Structure):
    _fields_ = (
        ("cells", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("decay", "now")),
        *((name, ctypes.c_void_p) for name in ("score", "since", "counts", "activations", "felt")),
    )


class HeatWarming:
    """What was used since the last time, [layers, experts], warms up at one moment."""

    def __init__(
        self,
        decaying: tuple[Floats, Floats, float],
        counts: NDArray[np.int64],
        activations: NDArray[np.int64],
        felt: NDArray[np.int64],
    ) -> None:
        """`activations` counts tokens, of which the heat knows those that it has `felt`.

        Raises MiractlError without the library.
        """
        score, since, decay = decaying
        self._arrays = score, since, counts, activations, felt
        pointers = (array.ctypes.data for array in self._arrays)
        self._struct = _Warming(score.size, decay, 0.0, *pointers)
        self.address, self._warm = ctypes.addressof(self._struct), short_calls().mira_warm

    def warm(self, now: float) -> None:
        """At a time of the heat's clock."""
        self._struct.now = now
        self._warm(self.address)
