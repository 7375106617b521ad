"""Who tells of one sequence's next layer, in C: predictors or a walk, called by who bets."""

import ctypes
from collections.abc import Sequence

import numpy as np

from miractl.native.chain import Walk
from miractl.native.predictor import Predictor


class _Teller(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "count")),
        *((name, ctypes.c_void_p) for name in ("pupils", "guess")),
    )


class Teller:
    """Predictors, each one layer further ahead than the one before, or one walk."""

    def __init__(self, pupils: Sequence[Predictor] | Sequence[Walk], experts: int) -> None:
        self.guess = np.zeros(experts)  # of the layer told of last
        self._pupils = tuple(pupils)
        self._addresses = (ctypes.c_void_p * len(pupils))(*(one.address for one in pupils))
        self._struct = _Teller(
            *(pupils[0].kind, len(pupils)),
            *(ctypes.addressof(self._addresses), self.guess.ctypes.data),
        )
        self.address = ctypes.addressof(self._struct)  # valid as long as the teller lives
