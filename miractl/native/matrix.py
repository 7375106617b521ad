"""Quantised matrices: to blocks and back, and multiplied where they lie."""

import ctypes
from collections.abc import Sequence

import numpy as np

from miractl.native.checks import (
    FLOAT_ALIGNMENT,
    MOST_PAIRS,
    Bytes,
    Floats,
    block_span,
    check_count,
    floats_span,
    raise_for,
    token_count,
)
from miractl.native.kernels import Pool
from miractl.native.layout import BLOCK_ALIGNMENT, MatrixShape
from miractl.native.library import library
from miractl.native.memory import Span, aligned_empty


class MatrixStruct(ctypes.Structure):
    """mira_matrix."""

    _fields_ = [(name, ctypes.c_int32) for name in ("format", "group", "rows", "columns")]


def matrix_struct(shape: MatrixShape) -> MatrixStruct:
    """A shape as the library takes it."""
    return MatrixStruct(shape.format.code, shape.format.group, shape.rows, shape.columns)


def quantize(weights: Floats, shape: MatrixShape) -> Bytes:
    """The block of weights[rows, columns]. Raises as `quantize_into`."""
    block = aligned_empty(shape.nbytes)
    quantize_into(weights, shape, Span.of(block))
    return block


def quantize_into(weights: Floats, shape: MatrixShape, block: Span) -> None:
    """Write the block of weights[rows, columns].

    Raises ValueError if a weight is infinite or not a number, or the block's memory does not fit.
    """
    source = floats_span("weights", weights, (shape.rows, shape.columns))
    block.check("block", shape.nbytes, BLOCK_ALIGNMENT)
    matrix = ctypes.byref(matrix_struct(shape))
    raise_for(library().mira_quantize(matrix, source.address, block.address))


def dequantize(block: Bytes | Span, shape: MatrixShape) -> Floats:
    """The weights[rows, columns] that a block stands for."""
    source = block_span(block, shape.nbytes)
    weights = np.empty((shape.rows, shape.columns), np.float32)
    matrix = ctypes.byref(matrix_struct(shape))
    library().mira_dequantize(matrix, source.address, weights.ctypes.data)
    return weights


class Matrix:
    """A quantised matrix in place: checked once, then multiplied as often as wanted."""

    def __init__(self, block: Bytes | Span, shape: MatrixShape) -> None:
        """Raises ValueError if the block is too short or not aligned."""
        self.shape = shape
        self.span = block_span(block, shape.nbytes)
        self._alone = Stack((self,))

    @property
    def block(self) -> Bytes:
        """The stored weights in place, as long as the matrix lives."""
        memory = (ctypes.c_uint8 * self.shape.nbytes).from_address(self.span.address)
        block: Bytes = np.ctypeslib.as_array(memory)
        return block

    def multiply(self, x: Floats, pool: Pool | None = None) -> Floats:
        """y[tokens, rows] = x[tokens, columns] W^T."""
        tokens = token_count(x)
        source = floats_span("x", x, (tokens, self.shape.columns))
        y = np.empty((tokens, self.shape.rows), np.float32)
        self.multiply_into(source, tokens, Span.of(y), pool)
        return y

    def multiply_into(self, x: Span, tokens: int, y: Span, pool: Pool | None = None) -> None:
        """The same on memory in place."""
        check_count("tokens", tokens, MOST_PAIRS)
        x.check("x", 4 * tokens * self.shape.columns, FLOAT_ALIGNMENT)
        y.check("y", 4 * tokens * self.shape.rows, FLOAT_ALIGNMENT)
        self._alone.multiply_at(x.address, tokens, y.address, pool)


class Stack:
    """Matrices with the same format and columns: one call multiplies all with the same tokens."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        """Raises ValueError if they differ in more than rows."""
        shapes = [matrix.shape for matrix in matrices]
        if len({(shape.format, shape.columns) for shape in shapes}) != 1:
            raise ValueError(f"Got {shapes} but expected matrices of one format and one width")
        self.columns, self.rows = shapes[0].columns, [shape.rows for shape in shapes]
        self.width = sum(self.rows)
        self._spans = tuple(matrix.span for matrix in matrices)  # whose memory this is
        self._structs = (MatrixStruct * len(shapes))(*map(matrix_struct, shapes))
        self._blocks = (ctypes.c_void_p * len(shapes))(*(span.address for span in self._spans))
        self._call = library().mira_multiply
        self._where = ctypes.addressof(self._structs), ctypes.addressof(self._blocks), len(shapes)

    def multiply_at(self, x: int, tokens: int, y: int, pool: Pool | None = None) -> None:
        """Write tokens x rows outputs at address y, matrix after matrix, of x[tokens, columns].

        The way for many small calls: the caller answers for the memory.
        """
        raise_for(self._call(pool and pool.address, *self._where, x, tokens, y))
