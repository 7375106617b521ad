"""Products and experts beside the same in float64: how far quantised activations lead away."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from miractl.native import Activation, Format, Matrix, MatrixShape, expert, quantize, reference
from tests.native.conftest import FORMATS, make_expert, normal, shapes_of_families

Doubles = NDArray[np.float64]
pytestmark = pytest.mark.usefixtures("kernels")
formats = pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f"{f.name}-{f.group}")
ALLOWED = {"i8": 1e-4, "i4k": 0.007}  # 16-bit and 8-bit activations


def relative(got: NDArray[np.floating], expected: Doubles) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


@formats
def test_products_are_those_of_the_dequantized_weights(
    format_: Format, rng: np.random.Generator
) -> None:
    shape = MatrixShape(format_, 256, 1024)
    block = quantize(normal(rng, 256, 1024, spread=0.02), shape)
    x = normal(rng, 16, 1024)
    expected = x.astype(np.float64) @ reference.dequantize(block, shape).T.astype(np.float64)
    assert relative(Matrix(block, shape).multiply(x), expected) < ALLOWED[format_.name]


def exact_activation(kind: Activation, x: Doubles, slope: float) -> Doubles:
    match kind:
        case Activation.SILU:
            return x / (1 + np.exp(-slope * x))
        case Activation.GELU_ERF:
            return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
        case Activation.GELU_TANH:
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        case Activation.RELU2:
            return np.maximum(x, 0) ** 2


@pytest.mark.parametrize("kind", Activation)
@pytest.mark.parametrize("slope", [1.0, 1.702])
def test_activations_are_right_to_float32(kind: Activation, slope: float) -> None:
    x = np.linspace(-60, 60, 40001, dtype=np.float32)
    exact = exact_activation(kind, x.astype(np.float64), slope)
    got = reference.activate(kind, x, slope)
    assert (np.abs(got - exact) <= 3e-7 * np.maximum(np.abs(x), np.abs(exact))).all()


@formats
def test_experts_are_the_formulas_of_the_families(
    format_: Format, rng: np.random.Generator
) -> None:
    for shape in shapes_of_families(format_):
        block = make_expert(rng, shape)
        x = normal(rng, 8, shape.hidden)
        rest = block[shape.gate_up.nbytes :]
        gate_up = reference.dequantize(block, shape.gate_up).astype(np.float64)
        down = reference.dequantize(rest, shape.down).astype(np.float64)
        biases = np.zeros(gate_up.shape[0] + shape.hidden)
        if shape.biased:
            biases = rest[shape.down.nbytes :].view(np.float32).astype(np.float64)
        both = x @ gate_up.T + biases[: len(gate_up)]
        gate = np.minimum(both[:, : shape.inner], shape.limit)
        inner = exact_activation(shape.activation, gate, shape.slope)
        if shape.gated:
            up = np.clip(both[:, shape.inner :], -shape.limit, shape.limit)
            inner = inner * (up + shape.shift)
        expected = inner @ down.T + biases[len(gate_up) :]
        assert relative(expert(block, shape, x), expected) < 3 * ALLOWED[format_.name], shape
