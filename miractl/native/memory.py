"""Memory handed to the library: an address, its length, and who keeps it alive."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from miractl.native.layout import BLOCK_ALIGNMENT

HUGE_PAGE = 2**21
_ASKED_FROM = 2**22  # bytes from which on numpy asks Linux for huge pages


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes at a fixed address. Made once, it spares each call numpy's slow `.ctypes.data`.

    `owner` is whatever must live as long: an array, a tensor, a mapping.
    """

    address: int
    nbytes: int
    owner: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.address, int) and 0 < self.address < 2**64):
            raise ValueError(f"Got address {self.address!r} but expected a positive integer")
        if not (isinstance(self.nbytes, int) and 0 <= self.nbytes < 2**63):
            raise ValueError(f"Got nbytes {self.nbytes!r} but expected an integer from 0")

    @staticmethod
    def of(array: NDArray[Any], *, writable: bool = False) -> "Span":
        """The memory of a contiguous array. Raises ValueError if it is strided or read-only."""
        if not array.flags.c_contiguous:
            raise ValueError(f"Got a strided array of shape {array.shape}; make it contiguous")
        if writable and not array.flags.writeable:
            raise ValueError(f"Got a read-only array of shape {array.shape} to write to")
        return Span(array.ctypes.data, array.nbytes, array)

    def check(self, what: str, nbytes: int, alignment: int) -> None:
        """Raise ValueError if shorter than `nbytes` or not aligned."""
        if self.nbytes < nbytes:
            raise ValueError(f"Got {self.nbytes} bytes of {what} but expected {nbytes}")
        if self.address % alignment:
            raise ValueError(
                f"Got {what} at address {self.address:#x} but expected a multiple of {alignment}"
            )


def aligned_empty(nbytes: int, alignment: int = BLOCK_ALIGNMENT) -> NDArray[np.uint8]:
    """Uninitialised bytes at an aligned address (a power of two)."""
    wanted = nbytes + alignment - 1
    if alignment == HUGE_PAGE:  # what is not touched takes no memory
        wanted = max(wanted, _ASKED_FROM)
    room = np.empty(wanted, np.uint8)
    start = -room.ctypes.data % alignment
    return room[start : start + nbytes]
