"""Blocks and shapes that the kernels' tests share."""

import numpy as np
import pytest
from numpy.typing import NDArray

from miractl.native import (
    Activation,
    ExpertShape,
    Format,
    Span,
    aligned_empty,
    available,
    library,
)
from miractl.native.matrix import quantize_into

FORMATS = [Format("i4k", 32), Format("i8", 32), Format("i8", 64), Format("i8", 128)]
SIMD = [isa for isa in library.supported_isas() if isa != "scalar"] if available() else []


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20260101)


@pytest.fixture(params=SIMD or ["scalar"])
def simd(request: pytest.FixtureRequest, kernels: None) -> str:
    """Each instruction set of this processor, the scalar one only where there is no other."""
    return str(request.param)


def normal(rng: np.random.Generator, *shape: int, spread: float = 1.0) -> NDArray[np.float32]:
    return (rng.standard_normal(shape) * spread).astype(np.float32)


def make_expert(rng: np.random.Generator, shape: ExpertShape) -> NDArray[np.uint8]:
    """The block of an expert with random weights and biases."""
    block = aligned_empty(shape.nbytes)
    block[:] = 0
    at = 0
    for matrix in (shape.gate_up, shape.down):
        weights = normal(rng, matrix.rows, matrix.columns, spread=0.1)
        quantize_into(weights, matrix, Span.of(block[at:]))
        at += matrix.nbytes
    block[at:].view(np.float32)[:] = normal(rng, shape.bias_count)
    return block


def gpt_oss_shape(format_: Format, hidden: int, inner: int) -> ExpertShape:
    return ExpertShape(format_, hidden, inner, biased=True, slope=1.702, limit=7.0, shift=1.0)


def shapes_of_families(format_: Format) -> list[ExpertShape]:
    """Every activation, with and without gate and biases."""
    plain = [ExpertShape(format_, 128, 256, activation=kind) for kind in Activation]
    ungated = ExpertShape(format_, 256, 128, gated=False, activation=Activation.RELU2)
    return [*plain, ungated, gpt_oss_shape(format_, 128, 128)]
