"""A layer of a step decided in one call, in C: decide.h says what is done in which order."""

import ctypes
import struct
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from miractl.native.library import short_calls


class Rule(IntEnum):
    """What a policy has the library rate by."""

    LEARNER = 0
    HEAT = 1
    STAMP = 2


# What is known of time when a layer is routed, in seconds of the transfers' clock: now, waited for
# transfers in all, of a transfer, 0 where that is not known, and what those experts of the layer
# before took that were there; and how many they were.
Known = tuple[float, float, float, float, int]
_TOLD = struct.Struct("@5P4d5i")  # with each layer


class _Stamp(ctypes.Structure):
    number: float

    _fields_ = (("number", ctypes.c_double), ("worth", ctypes.c_void_p))


class Stamp:
    """A number that becomes the worth of whom a layer uses, in `worth` [layers, experts]."""

    def __init__(self, worth: NDArray[np.float64]) -> None:
        self._worth, self._struct = worth, _Stamp(worth=worth.ctypes.data)
        self.address = ctypes.addressof(self._struct)  # valid as long as this lives

    def next(self) -> float:
        """Raise the number."""
        struct = self._struct
        struct.number += 1
        return struct.number


class _Deciding(ctypes.Structure):
    _fields_ = (
        ("told", ctypes.c_char * _TOLD.size),
        ("kind", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("table", "ahead")),
    )


class Deciding:
    """One table's decisions; see `tell`."""

    def __init__(self, table: int) -> None:
        """`table` is the address of the slot table. Raises MiractlError without the library."""
        native, self._struct = short_calls(), _Deciding(table=table)
        self.address = ctypes.addressof(self._struct)
        # Both are called with the address.
        self.keep, self.decide = native.mira_keep, native.mira_decide
        self.memory = memoryview(self._struct).cast("B")

    def bet_by(self, ahead: int) -> None:
        """The address of who bets."""
        self._struct.ahead = ahead

    def rate_by(self, rule: Rule) -> None:
        """What kind of rule layers are left to."""
        self._struct.kind = rule


# tell(deciding.memory, 0, ...): the first part of a mira_deciding, as decide.h has it.
tell = _TOLD.pack_into
