"""Products with quantised weights: a matrix, an expert, the experts of a layer.

Everything is float32 outside and is checked before the library sees it, so a wrong shape, a short
or an unaligned buffer is a ValueError. The interpreter lock is free during a call. Results are the
same to the last bit for any batch, number of threads and instruction set.
"""

import ctypes
import os
import weakref
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from miractl.native.layout import BLOCK_ALIGNMENT, ExpertShape, MatrixShape
from miractl.native.library import library
from miractl.native.memory import Span, aligned_empty

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
FLOAT_ALIGNMENT = 4
MOST_PAIRS = 2**31 - 1
MOST_EXPERTS = 2**20
MOST_THREADS = 1024


class _Matrix(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("format", "group", "rows", "columns")]


class _Expert(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("format", "group", "hidden", "inner")),
        *((name, ctypes.c_int32) for name in ("gated", "biased", "activation")),
        *((name, ctypes.c_float) for name in ("slope", "limit", "shift")),
    ]


def _raise(status: int) -> None:
    if status == 1:
        raise MemoryError("no memory for the kernel's working space")
    if status == 2:
        raise ValueError("Got weights that are infinite or not numbers")
    if status == 3:
        raise ValueError("Got an expert id that the layer does not have")


def _matrix(shape: MatrixShape) -> _Matrix:
    return _Matrix(shape.format.code, shape.format.group, shape.rows, shape.columns)


def _expert(shape: ExpertShape) -> _Expert:
    return _Expert(
        *(shape.format.code, shape.format.group, shape.hidden, shape.inner),
        *(shape.gated, shape.biased, shape.activation, shape.slope, shape.limit, shape.shift),
    )


def _floats(what: str, array: Floats, shape: tuple[int, ...]) -> Span:
    """Memory of an array to read; raises ValueError unless it is float32 of that shape."""
    if array.dtype != np.float32 or array.shape != shape:
        raise ValueError(f"Got {what} of {array.dtype} {array.shape} but expected float32 {shape}")
    return Span.of(np.ascontiguousarray(array))


def _tokens(x: Floats) -> int:
    return x.shape[0] if x.ndim == 2 else 0


def _count(what: str, value: int, most: int, least: int = 0) -> None:
    if not (isinstance(value, int) and least <= value <= most):
        raise ValueError(f"Got {what} = {value!r} but expected {least} to {most}")


class Pool:
    """Threads that share the work of one call at a time, the calling one included.

    They end with the object. A forked child has none of them and computes alone.
    """

    def __init__(self, threads: int) -> None:
        """Raises MiractlError without the library, MemoryError without threads to be had."""
        _count("threads", threads, MOST_THREADS, least=1)
        self.threads = threads
        self._address: int | None = library().mira_pool_new(threads)
        self._process = os.getpid()
        if self._address is None:
            raise MemoryError(f"no {threads} threads to be had")
        weakref.finalize(self, _free_pool, self._address, self._process)

    @property
    def address(self) -> int | None:
        """The library's pool; None in a child of the process that made it."""
        return self._address if os.getpid() == self._process else None


def _free_pool(address: int, process: int) -> None:
    if os.getpid() == process:
        library().mira_pool_free(address)


def quantize(weights: Floats, shape: MatrixShape) -> Bytes:
    """The block of weights[rows, columns]. Raises as `quantize_into`."""
    block = aligned_empty(shape.nbytes)
    quantize_into(weights, shape, Span.of(block))
    return block


def quantize_into(weights: Floats, shape: MatrixShape, block: Span) -> None:
    """Write the block of weights[rows, columns].

    Raises ValueError if a weight is infinite or not a number, or the block's memory does not fit.
    """
    source = _floats("weights", weights, (shape.rows, shape.columns))
    block.check("block", shape.nbytes, BLOCK_ALIGNMENT)
    _raise(library().mira_quantize(ctypes.byref(_matrix(shape)), source.address, block.address))


def dequantize(block: Bytes | Span, shape: MatrixShape) -> Floats:
    """The weights[rows, columns] that a block stands for."""
    source = _block(block, shape.nbytes)
    weights = np.empty((shape.rows, shape.columns), np.float32)
    library().mira_dequantize(ctypes.byref(_matrix(shape)), source.address, weights.ctypes.data)
    return weights


class Matrix:
    """A quantised matrix in place: checked once, then multiplied as often as wanted."""

    def __init__(self, block: Bytes | Span, shape: MatrixShape) -> None:
        """Raises ValueError if the block is too short or not aligned."""
        self.shape = shape
        self.span = _block(block, shape.nbytes)
        self._alone = Stack((self,))

    @property
    def block(self) -> Bytes:
        """The stored weights in place, as long as the matrix lives."""
        memory = (ctypes.c_uint8 * self.shape.nbytes).from_address(self.span.address)
        block: Bytes = np.ctypeslib.as_array(memory)
        return block

    def multiply(self, x: Floats, pool: Pool | None = None) -> Floats:
        """y[tokens, rows] = x[tokens, columns] W^T."""
        tokens = _tokens(x)
        source = _floats("x", x, (tokens, self.shape.columns))
        y = np.empty((tokens, self.shape.rows), np.float32)
        self.multiply_into(source, tokens, Span.of(y), pool)
        return y

    def multiply_into(self, x: Span, tokens: int, y: Span, pool: Pool | None = None) -> None:
        """The same on memory in place."""
        _count("tokens", tokens, MOST_PAIRS)
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
        self._structs = (_Matrix * len(shapes))(*map(_matrix, shapes))
        self._blocks = (ctypes.c_void_p * len(shapes))(*(span.address for span in self._spans))
        self._call = library().mira_multiply
        self._where = ctypes.addressof(self._structs), ctypes.addressof(self._blocks), len(shapes)

    def multiply_at(self, x: int, tokens: int, y: int, pool: Pool | None = None) -> None:
        """Write tokens x rows outputs at address y, matrix after matrix, of x[tokens, columns].

        The way for many small calls: the caller answers for the memory.
        """
        _raise(self._call(pool and pool.address, *self._where, x, tokens, y))


class _Table(NamedTuple):
    """Where the experts of a layer are. Never changed: a call keeps the one that it began with."""

    blocks: NDArray[np.uint64]  # addresses, 0 for an expert that is elsewhere
    address: int
    owners: tuple[Span | None, ...]


class Layer:
    """The experts of one layer, some of which may be elsewhere.

    Threads may move experts while others compute. What an expert's bytes are has to stay until the
    calls that began with it are done.
    """

    def __init__(self, shape: ExpertShape, experts: int) -> None:
        """Raises ValueError for an odd number of experts, MiractlError without the library."""
        _count("experts", experts, MOST_EXPERTS, least=1)
        self.shape = shape
        self.experts = experts
        self._lock = Lock()
        self._table = _table((None,) * experts)
        self._struct = _expert(shape)
        self._address = ctypes.addressof(self._struct)
        self._run = library().mira_layer

    def put(self, expert: int, block: Bytes | Span) -> None:
        """An expert is at this place. Raises ValueError if it is too short or not aligned."""
        self._move(expert, _block(block, self.shape.nbytes))

    def remove(self, expert: int) -> None:
        """An expert is no longer here; its pairs will be left out."""
        self._move(expert, None)

    def _move(self, expert: int, span: Span | None) -> None:
        _count("expert", expert, self.experts - 1)
        with self._lock:
            owners = self._table.owners
            self._table = _table((*owners[:expert], span, *owners[expert + 1 :]))

    def run(
        self,
        x: Floats,
        ids: NDArray[np.int32],
        weights: Floats | None = None,
        pool: Pool | None = None,
    ) -> tuple[Floats, Floats | None]:
        """Outputs of x[tokens, hidden] in the experts ids[tokens, top], and their weighted sum.

        Returns parts[tokens, top, hidden], zero where the expert is not here, and, with
        weights[tokens, top], y[tokens, hidden].
        """
        hidden = self.shape.hidden
        if ids.dtype != np.int32 or ids.ndim != 2:
            raise ValueError(f"Got ids of {ids.dtype} {ids.shape} but expected int32 [tokens, top]")
        tokens, top = ids.shape
        source = _floats("x", x, (tokens, hidden))
        scores = None if weights is None else _floats("weights", weights, (tokens, top))
        parts = np.zeros((tokens, top, hidden), np.float32)
        y = None if weights is None else np.empty((tokens, hidden), np.float32)
        chosen = Span.of(np.ascontiguousarray(ids))
        out = None if y is None else Span.of(y)
        self.run_into(source, tokens, chosen, top, scores, Span.of(parts), out, pool)
        return parts, y

    def run_into(
        self,
        x: Span,
        tokens: int,
        ids: Span,
        top: int,
        weights: Span | None,
        parts: Span,
        y: Span | None,
        pool: Pool | None = None,
    ) -> None:
        """The same on memory in place; rows of parts whose expert is not here stay as they are.

        Without y no sum is made. Raises ValueError for memory that does not fit, or an id that the
        layer does not have.
        """
        _count("tokens", tokens, MOST_PAIRS)
        _count("top", top, MOST_PAIRS // max(tokens, 1), least=1)
        pairs, hidden = tokens * top, self.shape.hidden
        x.check("x", 4 * tokens * hidden, FLOAT_ALIGNMENT)
        ids.check("ids", 4 * pairs, FLOAT_ALIGNMENT)
        parts.check("parts", 4 * pairs * hidden, FLOAT_ALIGNMENT)
        if (weights is None) != (y is None):
            raise ValueError("Got one of weights and y but expected both or none")
        if weights is not None and y is not None:
            weights.check("weights", 4 * pairs, FLOAT_ALIGNMENT)
            y.check("y", 4 * tokens * hidden, FLOAT_ALIGNMENT)
        table = self._table  # kept: another thread may put experts while this call runs
        scores = None if weights is None else weights.address
        out = None if y is None else y.address
        where = table.address
        self.run_at(x.address, tokens, ids.address, top, scores, parts.address, out, pool, where)

    def run_at(
        self,
        x: int,
        tokens: int,
        ids: int,
        top: int,
        weights: int | None,
        parts: int,
        y: int | None,
        pool: Pool | None,
        blocks: int,
    ) -> None:
        """The same on addresses: the way for many small calls. The caller answers for the memory.

        `blocks` are addresses uint64 [experts], 0 for elsewhere, in place of what was put. Raises
        ValueError for an id that the layer does not have.
        """
        _raise(
            self._run(
                *(pool and pool.address, self._address, blocks, self.experts),
                *(x, tokens, ids, top, weights, parts, y),
            )
        )


def _table(owners: tuple[Span | None, ...]) -> _Table:
    blocks = np.array([0 if span is None else span.address for span in owners], np.uint64)
    return _Table(blocks, blocks.ctypes.data, owners)


def expert(block: Bytes | Span, shape: ExpertShape, x: Floats, pool: Pool | None = None) -> Floats:
    """One expert on x[tokens, hidden]."""
    layer = Layer(shape, 1)
    layer.put(0, block)
    parts, _ = layer.run(x, np.zeros((_tokens(x), 1), np.int32), pool=pool)
    return parts[:, 0]


def _block(block: Bytes | Span, nbytes: int) -> Span:
    span = block if isinstance(block, Span) else Span.of(block)
    span.check("block", nbytes, BLOCK_ALIGNMENT)
    return span
