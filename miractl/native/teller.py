"""Who tells of the next layers while tokens are generated, in C: one new token of each sequence."""

import ctypes
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from miractl.native.chain import Walk
from miractl.native.library import short_calls
from miractl.native.predictor import Predictor

T = TypeVar("T", Predictor, Walk)


class _Teller(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "sequences", "each", "top", "experts")),
        *((name, ctypes.c_void_p) for name in ("pupils", "rows", "guess", "other")),
    )


class Teller(Generic[T]):
    """Takes in what each layer chose for some sequences, and tells what any of them will want."""

    def __init__(
        self,
        pupils: Sequence[Sequence[T]],
        rows: Sequence[int],
        top: int,
        experts: int,
        ahead: int,
    ) -> None:
        """Of each sequence predictors, each one layer further ahead than the one before; or a walk.

        `rows` of a step are their tokens. Raises MiractlError without the library.
        """
        self.pupils: list[T] = [one for each in pupils for one in each]
        self.next_layer = 0  # of the step
        self._experts = experts
        self._guesses: list[NDArray[np.float64]] = list(np.zeros((ahead, experts)))
        self.guess = self._guesses[0]  # of the next layer, as it was told last
        self._rows, self._other = np.array(rows, np.int32), np.zeros(experts)
        self._addresses = (ctypes.c_void_p * len(self.pupils))(*(p.address for p in self.pupils))
        self._struct = _Teller(
            *(self.pupils[0].kind, len(pupils), len(pupils[0]), top, experts),
            *(ctypes.addressof(self._addresses), self._rows.ctypes.data),
            *(self.guess.ctypes.data, self._other.ctypes.data),
        )
        self.address = ctypes.addressof(self._struct)  # valid as long as the teller lives
        native = short_calls()
        self._follow, self._tell = native.mira_teller_follow, native.mira_teller_tell

    def follow(self, layer: int, ids: int) -> None:
        """Take in int64 at address `ids` [rows, k]. Raises ValueError for unknown experts."""
        if self._follow(self.address, layer, ids):
            raise ValueError(f"Got experts that are none of {self._experts}")
        self.next_layer = layer + 1

    def tell(self, ahead: int) -> NDArray[np.float64]:
        """Probabilities [experts] of the layer so many after the one taken in last.

        Overwritten by the next of as many layers ahead.
        """
        self._tell(self.address, self.next_layer - 1, ahead)
        return self._guesses[ahead - 1]
