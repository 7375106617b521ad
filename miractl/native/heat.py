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
