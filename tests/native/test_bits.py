"""Equal bits: whatever the instruction set, the batch and the threads."""

import numpy as np
import pytest

from miractl.native import (
    Format,
    Layer,
    Matrix,
    MatrixShape,
    Pool,
    expert,
    library,
    quantize,
    reference,
)
from tests.native.conftest import FORMATS, make_expert, normal, shapes_of_families

TOKENS = [*range(1, 10), 64]
formats = pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f"{f.name}-{f.group}")


@formats
def test_simd_equals_scalar_for_every_number_of_tokens(
    format_: Format, simd: str, rng: np.random.Generator
) -> None:
    shape = MatrixShape(format_, 24, 384)
    matrix = Matrix(quantize(normal(rng, 24, 384), shape), shape)
    for tokens in TOKENS:
        x = normal(rng, tokens, 384)
        with library.using_isa("scalar"):
            expected = matrix.multiply(x)
        with library.using_isa(simd):
            assert np.array_equal(matrix.multiply(x), expected), tokens


@formats
def test_simd_equals_scalar_on_extreme_codes(format_: Format, simd: str) -> None:
    """The largest sums that a group can have: nothing saturates."""
    shape = MatrixShape(format_, 8, 256)
    weights = np.tile(np.float32([1, 1, 1, -1]), (8, 64))
    matrix = Matrix(quantize(weights, shape), shape)
    x = np.ones((9, 256), np.float32)
    x[1::2] = -1
    with library.using_isa("scalar"):
        expected = matrix.multiply(x)
    with library.using_isa(simd):
        assert np.array_equal(matrix.multiply(x), expected)


@formats
@pytest.mark.usefixtures("kernels")
def test_products_equal_the_reference(format_: Format, rng: np.random.Generator) -> None:
    shape = MatrixShape(format_, 16, 384)
    block = quantize(normal(rng, 16, 384), shape)
    x = normal(rng, 7, 384)
    x[1] = 0
    x[2] *= 1e-38  # below what is told from zero
    x[3] *= 1e30
    x[4, 7], x[5, 9] = np.inf, np.nan
    y = Matrix(block, shape).multiply(x)
    assert np.array_equal(y, reference.multiply(x, block, shape), equal_nan=True)
    assert np.isnan(y[4:6]).all()
    assert np.isfinite(np.delete(y, [4, 5], axis=0)).all()


@formats
def test_rows_of_a_batch_equal_the_rows_alone(
    format_: Format, simd: str, rng: np.random.Generator
) -> None:
    shape = MatrixShape(format_, 16, 256)
    matrix = Matrix(quantize(normal(rng, 16, 256), shape), shape)
    x = normal(rng, 64, 256)
    with library.using_isa(simd):
        batch = matrix.multiply(x)
        for size in (1, 3, 5, 9):
            pieces = [matrix.multiply(x[at : at + size]) for at in range(0, 64, size)]
            assert np.array_equal(np.concatenate(pieces), batch)


@pytest.mark.usefixtures("kernels")
def test_a_batch_beyond_the_cache_equals_its_rows(rng: np.random.Generator) -> None:
    shape = MatrixShape(Format("i8", 128), 8, 8192)
    matrix = Matrix(quantize(normal(rng, 8, 8192), shape), shape)
    x = normal(rng, 75, 8192)
    assert np.array_equal(matrix.multiply(x)[70:], matrix.multiply(x[70:]))


@formats
@pytest.mark.usefixtures("kernels")
def test_threads_do_not_show(format_: Format, rng: np.random.Generator) -> None:
    matrix_shape = MatrixShape(format_, 1032, 128)
    matrix = Matrix(quantize(normal(rng, 1032, 128), matrix_shape), matrix_shape)
    shape = shapes_of_families(format_)[0]
    layer = Layer(shape, 3)
    for number in range(3):
        layer.put(number, make_expert(rng, shape))
    x, weights = normal(rng, 20, 128), normal(rng, 20, 2)
    ids = rng.integers(0, 3, (20, 2), dtype=np.int32)
    pools = [None, Pool(1), Pool(2), Pool(3)]
    products = [matrix.multiply(x, pool) for pool in pools]
    sums = [layer.run(x, ids, weights, pool) for pool in pools]
    for product, (parts, y) in zip(products[1:], sums[1:], strict=True):
        assert np.array_equal(product, products[0])
        assert np.array_equal(parts, sums[0][0])
        assert np.array_equal(y, sums[0][1])


@formats
def test_experts_equal_the_reference(format_: Format, rng: np.random.Generator, simd: str) -> None:
    for shape in shapes_of_families(format_):
        block = make_expert(rng, shape)
        x = normal(rng, 5, shape.hidden, spread=3)
        with library.using_isa(simd):
            y = expert(block, shape, x)
        assert np.array_equal(y, reference.expert(x, block, shape)), shape


def test_the_checked_in_number(simd: str) -> None:
    """A hash of the results of every kernel; bench/cross_isa.sh finds it on ARM too."""
    for isa in ("scalar", simd):
        with library.using_isa(isa):
            assert library.library().mira_self_test() == library.SELF_TEST
