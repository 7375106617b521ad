"""CPU kernels: experts computed from the bytes on disk, with the same bits everywhere.

`layout` says what a block of bytes is, `library` finds the compiled kernels, `kernels` runs them,
and `reference` is the same arithmetic in numpy.
"""

from miractl.native.kernels import Layer, Matrix, Pool, dequantize, expert, quantize
from miractl.native.layout import I4K, I8, Activation, ExpertShape, Format, MatrixShape
from miractl.native.library import available, why_not
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
