"""Arguments that do not fit are Python errors, whatever they are."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.native import (
    I4K,
    I8,
    ExpertShape,
    Format,
    Layer,
    Matrix,
    MatrixShape,
    Pool,
    Span,
    aligned_empty,
    dequantize,
    quantize,
)
from miractl.native.matrix import quantize_into

pytestmark = pytest.mark.usefixtures("kernels")
SHAPE = MatrixShape(I4K, 16, 64)
EXPERT = ExpertShape(I4K, 32, 32)


def block(nbytes: int = SHAPE.nbytes) -> Any:
    zeros = aligned_empty(nbytes)
    zeros[:] = 0
    return zeros


def span(nbytes: int) -> Span:
    return Span.of(block(nbytes))


@given(
    st.sampled_from(["i8", "i4k", "q4", ""]),
    st.integers(-8, 300),
    st.integers(-(2**33), 2**33) | st.integers(-64, 600),
    st.integers(-(2**33), 2**33) | st.integers(-64, 600),
)
def test_shapes_are_valid_or_refused(name: str, group: int, rows: int, columns: int) -> None:
    fits = (
        ((name == "i8" and group in (32, 64, 128)) or (name == "i4k" and group == 32))
        and 0 < rows <= 2**24
        and 0 < columns <= 2**24
        and not rows % 8
        and not columns % group
    )
    if fits:
        assert MatrixShape(Format(name, group), rows, columns).nbytes % 64 == 0
    else:
        with pytest.raises(ValueError, match="Got"):
            MatrixShape(Format(name, group), rows, columns)


@pytest.mark.parametrize(
    "change",
    [
        *({"hidden": 100}, {"inner": 0}, {"limit": 0.0}, {"limit": float("nan")}),
        *({"slope": float("inf")}, {"shift": float("nan")}, {"hidden": 64.0}),
    ],
    ids=str,
)
def test_expert_shapes_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Got"):
        ExpertShape(**({"format": I8, "hidden": 128, "inner": 128} | change))


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, SHAPE.nbytes + 64),
    st.integers(0, 63),
    st.integers(-2, 5) | st.integers(2**31 - 2, 2**33),
    st.integers(0, 4 * 64 * 4),
    st.integers(0, 4 * 16 * 4),
    st.integers(0, 3),
)
def test_products_run_or_are_refused(
    length: int, shift: int, tokens: int, x_bytes: int, y_bytes: int, x_shift: int
) -> None:
    room, x_room = block(SHAPE.nbytes + 128), block(2000)
    memory = Span.of(room[shift : shift + length])
    if shift or length < SHAPE.nbytes:
        with pytest.raises(ValueError, match="Got"):
            Matrix(memory, SHAPE)
        return
    x, y = Span.of(x_room[x_shift : x_shift + x_bytes]), span(y_bytes)
    matrix = Matrix(memory, SHAPE)
    if tokens >= 0 and x_bytes >= 256 * tokens and y_bytes >= 64 * tokens and not x_shift:
        matrix.multiply_into(x, tokens, y)
    else:
        with pytest.raises(ValueError, match="Got"):
            matrix.multiply_into(x, tokens, y)


SPANS = {"x": 2 * 128, "ids": 2 * 2 * 4, "weights": 2 * 2 * 4, "parts": 4 * 128, "y": 2 * 128}


@pytest.mark.parametrize("name", SPANS)
def test_layers_want_whole_buffers(name: str) -> None:
    layer = Layer(EXPERT, 3)
    layer.put(0, block(EXPERT.nbytes))
    right: dict[str, Any] = {key: span(nbytes) for key, nbytes in SPANS.items()}
    layer.run_into(tokens=2, top=2, **right)
    room = block(1024)
    for wrong in (span(SPANS[name] - 1), Span.of(room[2:])):
        with pytest.raises(ValueError, match="Got"):
            layer.run_into(tokens=2, top=2, **(right | {name: wrong}))
    if name in ("weights", "y"):
        with pytest.raises(ValueError, match="both or none"):
            layer.run_into(tokens=2, top=2, **(right | {name: None}))


@pytest.mark.parametrize(("tokens", "top"), [(-1, 1), (1, 0), (1, -1), (2**31, 1), (2, 2**30)])
def test_layers_want_sensible_counts(tokens: int, top: int) -> None:
    right: dict[str, Any] = {key: span(nbytes) for key, nbytes in SPANS.items()}
    with pytest.raises(ValueError, match="expected"):
        Layer(EXPERT, 3).run_into(tokens=tokens, top=top, **right)


@pytest.mark.parametrize(
    "x",
    [
        *(np.ones((2, 32), np.float32), np.ones((2, 64)), np.ones(64, np.float32), np.float32(1)),
        *(np.ones((2, 64), ">f4"), np.ones((1, 2, 64), np.float32), np.ones((2, 64), np.int32)),
    ],
    ids=lambda x: f"{x.dtype.str}{x.shape}",
)
def test_arrays_of_other_shapes_and_types_are_refused(x: Any) -> None:
    with pytest.raises(ValueError, match="Got x"):
        Matrix(block(), SHAPE).multiply(x)
    with pytest.raises(ValueError, match="Got weights"):
        quantize(x, SHAPE)


def test_strided_inputs_are_copied_and_strided_blocks_refused() -> None:
    weights = np.arange(2 * 16 * 64, dtype=np.float32).reshape(64, 32)[:, ::2].T
    matrix = Matrix(quantize(weights, SHAPE), SHAPE)
    x = np.ones((4, 128), np.float32)[:, ::2]
    assert np.array_equal(matrix.multiply(x), matrix.multiply(x.copy()))
    with pytest.raises(ValueError, match="strided"):
        Matrix(block(2 * SHAPE.nbytes)[::2], SHAPE)


def test_memory_to_write_has_to_fit() -> None:
    weights = np.ones((16, 64), np.float32)
    with pytest.raises(ValueError, match="bytes of block"):
        quantize_into(weights, SHAPE, span(SHAPE.nbytes - 1))
    with pytest.raises(ValueError, match="bytes of block"):
        dequantize(block(SHAPE.nbytes - 1), SHAPE)
    frozen = block()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        Span.of(frozen, writable=True)


@pytest.mark.parametrize("address", [0, -64, 2**64, 1.5, None])
def test_addresses_are_positive_integers(address: Any) -> None:
    with pytest.raises(ValueError, match="address"):
        Span(address, 64)


@pytest.mark.parametrize("threads", [0, -1, 5000, 1.0])
def test_pools_want_a_sensible_number_of_threads(threads: Any) -> None:
    with pytest.raises(ValueError, match="threads"):
        Pool(threads)


@pytest.mark.parametrize("experts", [0, -1, 2**21])
def test_layers_want_a_sensible_number_of_experts(experts: int) -> None:
    with pytest.raises(ValueError, match="experts"):
        Layer(EXPERT, experts)


@pytest.mark.parametrize("number", [-1, 3])
def test_experts_are_put_where_the_layer_has_a_place(number: int) -> None:
    layer = Layer(EXPERT, 3)
    with pytest.raises(ValueError, match="expert"):
        layer.put(number, block(EXPERT.nbytes))
    with pytest.raises(ValueError, match="expert"):
        layer.remove(number)
    with pytest.raises(ValueError, match="bytes of block"):
        layer.put(0, block(EXPERT.nbytes - 4))
