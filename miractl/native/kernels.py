"""Products with quantised weights: an expert, the experts of a layer, and threads for them.

Everything is float32 outside and is checked before the library sees it, so a wrong shape, a short
or an unaligned buffer is a ValueError. The interpreter lock is free during a call. Results are the
same to the last bit for any batch, number of threads and instruction set.
"""

import ctypes
import os
import weakref
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from miractl.native.layout import ExpertShape
from miractl.native.library import library
from miractl.native.memory import Span

MOST_EXPERTS = 2**20
MOST_THREADS = 1024


class _Expert(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("format", "group", "hidden", "inner")),
        *((name, ctypes.c_int32) for name in ("gated", "biased", "activation")),
        *((name, ctypes.c_float) for name in ("slope", "limit", "shift")),
    ]


def _expert(shape: ExpertShape) -> _Expert:
    return _Expert(
        *(shape.format.code, shape.format.group, shape.hidden, shape.inner),
        *(shape.gated, shape.biased, shape.activation, shape.slope, shape.limit, shape.shift),
    )


class Pool:
    """Threads that share the work of one call at a time, the calling one included.

    They end with the object. A forked child has none of them and computes alone.
    """

    def __init__(self, threads: int) -> None:
        """Raises MiractlError without the library, MemoryError without threads to be had."""
        check_count("threads", threads, MOST_THREADS, least=1)
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
        check_count("experts", experts, MOST_EXPERTS, least=1)
        self.shape = shape
        self.experts = experts
        self._lock = Lock()
        self._table = _table((None,) * experts)
        self._struct = _expert(shape)
        self._address = ctypes.addressof(self._struct)
        self._run = library().mira_layer

    def put(self, expert: int, block: Bytes | Span) -> None:
        """An expert is at this place. Raises ValueError if it is too short or not aligned."""
        self._move(expert, block_span(block, self.shape.nbytes))

    def remove(self, expert: int) -> None:
        """An expert is no longer here; its pairs will be left out."""
        self._move(expert, None)

    def _move(self, expert: int, span: Span | None) -> None:
        check_count("expert", expert, self.experts - 1)
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
        source = floats_span("x", x, (tokens, hidden))
        scores = None if weights is None else floats_span("weights", weights, (tokens, top))
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
        check_count("tokens", tokens, MOST_PAIRS)
        check_count("top", top, MOST_PAIRS // max(tokens, 1), least=1)
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
        raise_for(
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
    parts, _ = layer.run(x, np.zeros((token_count(x), 1), np.int32), pool=pool)
    return parts[:, 0]
