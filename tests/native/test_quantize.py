"""From weights to blocks and back: the same decisions as in numpy, and how good they are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from miractl.native import Format, MatrixShape, dequantize, library, quantize, reference
from tests.native.conftest import FORMATS, normal

formats = pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f"{f.name}-{f.group}")


def odd_rows(rng: np.random.Generator) -> NDArray[np.float32]:
    """Rows that weights of models seldom have."""
    w = normal(rng, 16, 256, spread=0.02)
    w[0] = 0
    w[1] = np.abs(w[1])
    w[2] = -np.abs(w[2])
    w[3] = -0.25
    w[4] = 0.25
    w[5] *= 1e-20
    w[6] *= 1e-38
    w[7, ::9] *= 1000
    w[8, 64:96] = 0
    w[9] *= 1e20
    w[10] = -0.0
    return w


@formats
def test_blocks_equal_the_reference(format_: Format, simd: str, rng: np.random.Generator) -> None:
    shape = MatrixShape(format_, 16, 256)
    for weights in (odd_rows(rng), normal(rng, 16, 256)):
        expected = reference.quantize(weights, shape)
        for isa in ("scalar", simd):
            with library.using_isa(isa):
                assert np.array_equal(quantize(weights, shape), expected)


@formats
@pytest.mark.usefixtures("kernels")
def test_dequantized_equals_the_reference(format_: Format, rng: np.random.Generator) -> None:
    shape = MatrixShape(format_, 16, 256)
    block = quantize(odd_rows(rng), shape)
    assert np.array_equal(dequantize(block, shape), reference.dequantize(block, shape))


@pytest.mark.usefixtures("kernels")
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-100, 100, width=32), min_size=32, max_size=32),
    st.sampled_from(FORMATS[:2]),
)
def test_any_group_equals_the_reference(group: list[float], format_: Format) -> None:
    shape = MatrixShape(format_, 8, 32)
    weights = np.tile(np.array(group, np.float32), (8, 1))
    block = quantize(weights, shape)
    assert np.array_equal(block, reference.quantize(weights, shape))
    spread = max(max(group), 0.0) - min(min(group), 0.0)
    assert np.abs(dequantize(block, shape) - weights).max() <= 0.11 * spread + 1e-5


@pytest.mark.parametrize(
    ("distribution", "most"),
    [
        ("normal", {"i4k-32": 0.0710, "i8-32": 0.0055, "i8-64": 0.0061, "i8-128": 0.0066}),
        ("student", {"i4k-32": 0.0855, "i8-32": 0.0076, "i8-64": 0.0092, "i8-128": 0.0112}),
    ],
)
@formats
@pytest.mark.usefixtures("kernels")
def test_error_of_weights(
    format_: Format, distribution: str, most: dict[str, float], rng: np.random.Generator
) -> None:
    shape = MatrixShape(format_, 256, 1024)
    draw = rng.standard_normal if distribution == "normal" else lambda s: rng.standard_t(4, s)
    weights = (draw((256, 1024)) * 0.02).astype(np.float32)
    error = np.linalg.norm(dequantize(quantize(weights, shape), shape) - weights)
    assert error / np.linalg.norm(weights) < most[f"{format_.name}-{format_.group}"]


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@formats
@pytest.mark.usefixtures("kernels")
def test_weights_that_are_no_numbers_are_refused(format_: Format, bad: float) -> None:
    shape = MatrixShape(format_, 8, 128)
    weights = np.ones((8, 128), np.float32)
    weights[5, 77] = bad
    with pytest.raises(ValueError, match="infinite or not numbers"):
        quantize(weights, shape)


def test_reference_fma_rounds_once(rng: np.random.Generator) -> None:
    """Against exact arithmetic, on sums that a double rounding gets wrong."""
    from fractions import Fraction

    a, b = normal(rng, 2000), normal(rng, 2000)
    c = (-a.astype(np.float64) * b * (1 + rng.choice([0, 2**-30, 1e-8], 2000))).astype(np.float32)
    for x, y, z, got in zip(a, b, c, reference.fma(a, b, c), strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert abs(Fraction(float(got)) - exact) <= min(
            abs(Fraction(float(np.nextafter(got, np.float32(way)))) - exact)
            for way in (-np.inf, np.inf)
        )
