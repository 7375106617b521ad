"""Counts of which experts followed which, in C: brain.h says how."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from miractl.native.library import short_calls

BY_LAYER, BY_TOKEN = 0, 1


class _Chain(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("layers", "experts", "top")),
        *((name, ctypes.c_double) for name in ("most", "of_layer")),
        *((name, ctypes.c_void_p * 2) for name in ("tables", "totals")),
    ]


class _Walk(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("chain", "ids", "scratch")),
        *((name, ctypes.c_int32) for name in ("turn", "known")),
    ]


class Chain:
    """Tables of who followed whom in the next layer and at the next token."""

    def __init__(
        self, layers: int, experts: int, top: int, *, prior: float, most: float, of_layer: float
    ) -> None:
        """`prior`: of each count; `most`: a row that sums to more fades by half.

        `of_layer`: weight of the layer before where the token before is known too. Raises
        MiractlError without the library.
        """
        self.layers, self.experts, self.top, self._prior = layers, experts, top, prior
        shape = (layers, experts, experts)
        self.tables = [np.full(shape, prior, np.float32) for _ in range(2)]
        self.totals = [np.full(shape[:2], prior * experts) for _ in range(2)]
        pointers = ctypes.c_void_p * 2
        self._struct = _Chain(
            *(layers, experts, top, most, of_layer),
            pointers(*(table.ctypes.data for table in self.tables)),
            pointers(*(total.ctypes.data for total in self.totals)),
        )
        self.address = ctypes.addressof(self._struct)
        self._count = short_calls().mira_markov_count

    def count(self, kind: int, layer: int, before: int, after: int, tokens: int) -> None:
        """Count who followed whom at a layer: rows of int64 [tokens, k] at two addresses.

        Raises ValueError for experts that do not exist.
        """
        if self._count(self.address, kind, layer, before, after, tokens):
            raise ValueError(f"Got experts that are none of {self.experts}")

    def fade(self) -> None:
        """Halve what was counted; the prior stays."""
        for table, total in zip(self.tables, self.totals, strict=True):
            table -= (table - self._prior) / 2
            total -= (total - self._prior * self.experts) / 2

    def add_up(self) -> None:
        """The tables have been written to."""
        for table, total in zip(self.tables, self.totals, strict=True):
            total[:] = table.sum(axis=2, dtype=np.float64)


class Walk:
    """One sequence: its last two tokens, of which a `Teller` follows the newest.

    What that teaches is left to a lesson.
    """

    kind = 2  # of a pupil

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._ids = np.zeros((2, chain.layers, chain.top), np.int64)
        self._scratch = np.zeros((2, chain.experts), np.float32)
        self._struct = _Walk(chain.address, self._ids.ctypes.data, self._scratch.ctypes.data)
        self.address = ctypes.addressof(self._struct)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Experts of the token before, [layers, k]; not to be written to."""
        found: NDArray[np.int64] = self._ids[self._struct.turn ^ 1]
        return found

    @property
    def newest(self) -> NDArray[np.int64]:
        """Experts of this token, [layers, k]; not to be written to."""
        found: NDArray[np.int64] = self._ids[self._struct.turn]
        return found

    @property
    def known(self) -> bool:
        """Whether there is a token before."""
        return bool(self._struct.known)

    def turn(self) -> None:
        """What was taken in is the token before, and has been counted."""
        self._struct.turn ^= 1
        self._struct.known = 1
