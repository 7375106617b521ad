"""Attention of new tokens: where keys and values are kept cannot be seen in an answer."""

import ctypes
import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from miractl.native.attention import AttentionHalf, HeadShape, Kept
from miractl.native.kernels import Pool
from miractl.native.layout import Format, MatrixShape
from miractl.native.matrix import Matrix, quantize
from miractl.native.norm import Norm
from tests.native.conftest import normal

HIDDEN = 128
Floats = NDArray[np.float32]


def norm(rng: np.random.Generator, columns: int) -> Norm:
    return Norm(1 + normal(rng, columns, spread=0.1), 1e-6, 8)


def made(rng: np.random.Generator, shape: HeadShape, *, normed: bool = True) -> AttentionHalf:
    wide = shape.heads * shape.dim
    sizes = [(wide * shape.group, HIDDEN), (wide, HIDDEN), (wide, HIDDEN)]
    sizes.append((HIDDEN, wide * shape.group))
    shapes = [MatrixShape(Format("i8", 32), *size) for size in sizes]
    matrices = [Matrix(quantize(normal(rng, m.rows, m.columns, spread=0.1), m), m) for m in shapes]
    own = [norm(rng, shape.dim) if normed else None, norm(rng, wide) if normed else None]
    biases = [normal(rng, m.rows) if normed else None for m in shapes]
    return AttentionHalf([norm(rng, HIDDEN), *own, norm(rng, HIDDEN)], matrices, biases, shape)


def at(array: NDArray[np.generic]) -> int:
    return int(array.ctypes.data)


def run(
    half: AttentionHalf, kept: Kept, x: Floats, angles: Floats, pool: Pool | None = None
) -> tuple[Floats, Floats]:
    h, y = np.empty_like(x), np.empty_like(x)
    stride = 0 if angles.shape[1] == 1 else half.shape.turned
    where = at(angles[0]), at(angles[1]), stride
    address = ctypes.addressof(kept)
    assert half.run_at(address, len(x), at(x), where, at(h), at(y), pool)
    return h, y


def grown(shape: HeadShape, keys: Floats, values: Floats, tokens: int) -> Kept:
    """Of [sequences, heads, room, dim]."""
    sequences, heads, room, dim = keys.shape
    strides = heads * room * dim, room * dim, dim
    return Kept(at(keys), at(values), sequences, heads, dim, room, *strides, tokens)


SHAPES = [
    HeadShape(2, 3, 32, 32, 0.2),
    HeadShape(2, 2, 32, 16, 0.2),  # half of a vector is turned
    HeadShape(1, 4, 64, 64, 0.1),
    HeadShape(4, 1, 16, 16, 0.3),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tokens", [1, 5, 37])
def test_rooms_and_pages_give_the_same(
    rng: np.random.Generator, shape: HeadShape, tokens: int
) -> None:
    half = made(rng, shape)
    sequences, room = 3, tokens + 3
    keys, values = normal(rng, 2, sequences, shape.heads, room, shape.dim)
    x, angles = normal(rng, sequences, HIDDEN), normal(rng, 2, sequences, shape.turned)
    # In pages of four tokens that lie in disorder, [page, token, head, dim].
    pages = -(-room // 4)
    order = rng.permutation(sequences * pages).reshape(sequences, pages)
    paged = np.zeros((2, sequences * pages * 4, shape.heads, shape.dim), np.float32)
    rows = np.int64([[order[b, i // 4] * 4 + i % 4 for i in range(room)] for b in range(sequences)])
    for b, i in itertools.product(range(sequences), range(tokens)):
        paged[:, rows[b, i]] = keys[b, :, i], values[b, :, i]
    read = np.ascontiguousarray(rows[:, : tokens + 1].reshape(-1))
    written = np.ascontiguousarray(rows[:, tokens])
    starts = np.arange(sequences + 1, dtype=np.int32) * (tokens + 1)
    strides = 0, shape.dim, shape.heads * shape.dim
    pager = Kept(
        *(at(paged[0]), at(paged[1]), sequences, shape.heads, shape.dim, 0, *strides, 0),
        *(at(read), at(written), at(starts)),
    )
    kept = grown(shape, keys, values, tokens)
    one, other = run(half, kept, x, angles), run(half, pager, x, angles, Pool(3))
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    assert kept.tokens == tokens + 1
    for b in range(sequences):
        assert np.array_equal(paged[0, written[b]], keys[b, :, tokens])
        assert np.array_equal(paged[1, written[b]], values[b, :, tokens])


@pytest.mark.parametrize("normed", [True, False])
def test_no_sequence_depends_on_the_others(rng: np.random.Generator, normed: bool) -> None:
    shape = SHAPES[0]
    half = made(rng, shape, normed=normed)
    keys, values = normal(rng, 2, 3, shape.heads, 40, shape.dim)
    x, angles = normal(rng, 3, HIDDEN), normal(rng, 2, 1, shape.turned)
    alone = []
    for b in range(3):
        own = keys[b : b + 1].copy(), values[b : b + 1].copy()
        alone.append(run(half, grown(shape, *own, 20), x[b : b + 1], angles))
    together = run(half, grown(shape, keys, values, 20), x, angles, Pool(2))
    for part in range(2):
        assert np.array_equal(together[part], np.concatenate([one[part] for one in alone]))


def test_what_is_of_others_or_full_is_left_alone(rng: np.random.Generator) -> None:
    shape = SHAPES[0]
    half = made(rng, shape)
    keys, values = normal(rng, 2, 2, shape.heads, 8, shape.dim)
    x, before = normal(rng, 2, HIDDEN), keys.copy()
    h, angles = np.zeros_like(x), normal(rng, 2, 1, shape.turned)
    where = at(x), (at(angles[0]), at(angles[1]), 0), at(h), at(h)
    full, usual = grown(shape, keys, values, 8), grown(shape, keys, values, 7)
    assert not half.run_at(ctypes.addressof(full), 2, *where)
    assert not half.run_at(ctypes.addressof(usual), 1, *where)
    assert np.array_equal(keys, before)
    assert not h.any()


def test_parts_that_do_not_fit_are_refused(rng: np.random.Generator) -> None:
    half = made(rng, SHAPES[0])
    norms, matrices, _ = half._owners
    for shape in (HeadShape(2, 2, 32, 32, 0.2), HeadShape(2, 3, 32, 31, 0.2)):
        with pytest.raises(ValueError, match="norms of other widths"):
            AttentionHalf(norms, matrices, [None] * 4, shape)
    for odd in ([None, *norms[1:]], [norms[0], norm(rng, 50), *norms[2:]]):
        with pytest.raises(ValueError, match="norms of other widths"):
            AttentionHalf(odd, matrices, [None] * 4, SHAPES[0])
