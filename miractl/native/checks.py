"""Whether arguments are what the library takes: it trusts whoever calls it."""

import numpy as np
from numpy.typing import NDArray

from miractl.native.layout import BLOCK_ALIGNMENT
from miractl.native.memory import Span

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
FLOAT_ALIGNMENT = 4
MOST_PAIRS = 2**31 - 1


def raise_for(status: int) -> None:
    """Raise MemoryError or ValueError for what a call returned."""
    if status == 1:
        raise MemoryError("no memory for the kernel's working space")
    if status == 2:
        raise ValueError("Got weights that are infinite or not numbers")
    if status == 3:
        raise ValueError("Got an expert id that the layer does not have")


def floats_span(what: str, array: Floats, shape: tuple[int, ...]) -> Span:
    """Memory of an array to read; raises ValueError unless it is float32 of that shape."""
    if array.dtype != np.float32 or array.shape != shape:
        raise ValueError(f"Got {what} of {array.dtype} {array.shape} but expected float32 {shape}")
    return Span.of(np.ascontiguousarray(array))


def token_count(x: Floats) -> int:
    """Rows of x; 0 where it has no two dimensions."""
    return x.shape[0] if x.ndim == 2 else 0


def check_count(what: str, value: int, most: int, least: int = 0) -> None:
    """Raise ValueError unless value is an integer from `least` to `most`."""
    if not (isinstance(value, int) and least <= value <= most):
        raise ValueError(f"Got {what} = {value!r} but expected {least} to {most}")


def block_span(block: Bytes | Span, nbytes: int) -> Span:
    """Memory of a block; raises ValueError if it is shorter than `nbytes` or not aligned."""
    span = block if isinstance(block, Span) else Span.of(block)
    span.check("block", nbytes, BLOCK_ALIGNMENT)
    return span
