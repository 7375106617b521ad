"""CPU kernels: experts computed from the bytes on disk, with the same bits everywhere.

`layout` says what a block of bytes is, `library` finds the compiled kernels, `matrix` and `kernels`
run them, and `reference` is the same arithmetic in numpy.
"""

from typing import TYPE_CHECKING, Any

from miractl.native.layout import I4K, I8, Activation, ExpertShape, Format, MatrixShape
from miractl.native.library import available, why_not

if TYPE_CHECKING:
    from miractl.native.kernels import Layer, Pool, expert
    from miractl.native.matrix import Matrix, dequantize, quantize
    from miractl.native.memory import Span, aligned_empty

__all__ = [
    "I4K",
    "I8",
    "Activation",
    "ExpertShape",
    "Format",
    "Layer",
    "Matrix",
    "MatrixShape",
    "Pool",
    "Span",
    "aligned_empty",
    "available",
    "dequantize",
    "expert",
    "quantize",
    "why_not",
]


def __getattr__(name: str) -> Any:
    """What needs numpy, when it is first asked for: the doctor asks for the library alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from miractl.native import kernels, matrix, memory

    return next(getattr(at, name) for at in (kernels, matrix, memory) if name in vars(at))
