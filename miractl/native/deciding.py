"""A layer of a step decided in one call, in C: decide.h says what is done in which order."""

import ctypes
import struct
from enum import IntEnum

from miractl.native.library import short_calls


class Rule(IntEnum):
    """What a policy has the library rate by."""

    LEARNER = 0
    HEAT = 1


# What is known of time when a layer is routed, in seconds of the transfers' clock: now, waited for
# transfers in all, of a transfer, 0 where that is not known, and what those experts of the layer
# before took that were there; and how many they were.
Known = tuple[float, float, float, float, int]
_TOLD = struct.Struct("@5P5d5i")  # with each layer


class Deciding(ctypes.Structure):
    """What the library is told of a layer; `ahead` is the address of who bets, or None."""

    ahead: int | None

    _fields_ = (
        ("told", ctypes.c_char * _TOLD.size),
        ("kind", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("table", "ahead")),
    )

    def __init__(self, table: int) -> None:
        """`table` is the address of the slot table. Raises MiractlError without the library."""
        super().__init__(table=table)
        native, self._address = short_calls(), ctypes.addressof(self)
        self._keep, self._decide = native.mira_keep, native.mira_decide
        self._memory = memoryview(self).cast("B")

    def tell(self, *known: float) -> None:
        """All of the first part of a `mira_deciding`, in order."""
        _TOLD.pack_into(self._memory, 0, *known)

    def keep(self) -> None:
        """Copy the routing to where it stays."""
        self._keep(self._address)

    def decide(self) -> int:
        """The Status; below 0, and nothing done: experts that do not exist."""
        status: int = self._decide(self._address)
        return status
