"""Attention of one new token of each sequence, alone and with all that a layer does around it."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from miractl.native.checks import Floats, raise_for
from miractl.native.kernels import Pool
from miractl.native.library import library
from miractl.native.matrix import Matrix, MatrixStruct, matrix_struct
from miractl.native.memory import Span
from miractl.native.norm import Norm, NormStruct

MOST_GROUP = 64  # queries of a head of keys
UNFIT = 5  # MIRA_UNFIT


class Queries(ctypes.Structure):
    """mira_attention: one query [group] of each head of keys, strides in floats."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "heads", "group", "tokens", "dim")),
        *((name, ctypes.c_int64) for name in ("query_batch", "query_head")),
        *((name, ctypes.c_int64) for name in ("key_batch", "key_head", "key_token")),
        *((name, ctypes.c_int64) for name in ("value_batch", "value_head", "value_token")),
        *((name, ctypes.c_void_p) for name in ("rows", "starts")),
        ("scale", ctypes.c_float),
    ]


def attend_at(queries: Queries, q: int, k: int, v: int, y: int, pool: Pool | None = None) -> None:
    """softmax(scale q k^T) v at addresses, y [batch, heads * group, dim].

    The caller answers for the memory.
    """
    library().mira_attend(pool and pool.address, ctypes.addressof(queries), q, k, v, y)


class Kept(ctypes.Structure):
    """mira_kept: where keys and values of some sequences are, and where the next ones go.

    Without `rows`, an address, every sequence has `tokens`, and gets one more. With it, token i of
    sequence b is at rows[starts[b] + i], the new one, last of these, at written[b].
    """

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        *((name, ctypes.c_int64) for name in ("sequences", "heads", "dim", "room")),
        *((name, ctypes.c_int64) for name in ("batch", "head", "token", "tokens")),
        *((name, ctypes.c_void_p) for name in ("rows", "written", "starts")),
    ]


class _Half(ctypes.Structure):
    _fields_ = [
        *((name, NormStruct) for name in ("before", "query", "key", "after")),
        ("matrices", MatrixStruct * 4),
        ("blocks", ctypes.c_void_p * 4),
        ("biases", ctypes.c_void_p * 4),
        *((name, ctypes.c_int32) for name in ("heads", "group", "dim", "turned")),
        ("scale", ctypes.c_float),
    ]


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of keys, queries of each, numbers of each, and how many of these are turned."""

    heads: int
    group: int
    dim: int
    turned: int
    scale: float


class AttentionHalf:
    """What a layer does before its experts: h = x + attention(before(x)), and after(h)."""

    def __init__(
        self,
        norms: Sequence[Norm | None],
        matrices: Sequence[Matrix],
        biases: Sequence[Floats | None],
        shape: HeadShape,
    ) -> None:
        """`norms`: before, of queries, of keys, after. `matrices`: of queries, keys, values, out.

        Raises ValueError where these do not fit each other.
        """
        before, query, key, after = norms
        shapes = [matrix.shape for matrix in matrices]
        hidden, wide = shapes[0].columns, shape.heads * shape.dim
        rows = [wide * shape.group, wide, wide, hidden]
        fits = (
            [each.rows for each in shapes] == rows
            and [each.columns for each in shapes] == [hidden] * 3 + rows[:1]
            and len({each.format for each in shapes[:3]}) == 1
            and before is not None
            and after is not None
            and before.columns == after.columns == hidden
            and all(not n or r % n.columns == 0 for n, r in zip((query, key), rows, strict=False))
            and all(b is None or b.shape == (r,) for b, r in zip(biases, rows, strict=True))
            and shape.turned % 2 == 0
            and shape.turned <= shape.dim
            and 0 < shape.group <= MOST_GROUP
        )
        if not fits:
            raise ValueError(f"Got {shapes} and norms of other widths for {shape}")
        spans = [b if b is None else Span.of(np.ascontiguousarray(b, np.float32)) for b in biases]
        self.hidden, self.shape = hidden, shape
        self._owners = norms, matrices, spans
        self._struct = _Half(
            *(NormStruct() if norm is None else norm.struct for norm in norms),
            (MatrixStruct * 4)(*map(matrix_struct, shapes)),
            (ctypes.c_void_p * 4)(*(matrix.span.address for matrix in matrices)),
            (ctypes.c_void_p * 4)(*((span.address if span else 0) for span in spans)),
            *(shape.heads, shape.group, shape.dim, shape.turned, shape.scale),
        )
        self._address = ctypes.addressof(self._struct)
        self._call = library().mira_attention_half

    def run_at(
        self,
        kept: int,
        tokens: int,
        x: int,
        angles: tuple[int, int, int],
        h: int,
        y: int,
        pool: Pool | None = None,
    ) -> bool:
        """Of x[tokens, hidden], each of another sequence, to h and y of the same shape.

        `kept` is the address of a `Kept`, which grows by these; False, and nothing done, where it
        is of others or full. `angles` are addresses of cosines and sines and the stride of both.
        The caller answers for the memory.
        """
        where = self._address, kept, tokens, x, *angles, h, y
        status = self._call(None if pool is None else pool.address, *where)
        if status == UNFIT:
            return False
        if status:
            raise_for(status)
        return True
