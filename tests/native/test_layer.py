"""The experts of a layer: who is computed, who is left out, and who shares a pool."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from miractl.native import I4K, I8, ExpertShape, Layer, Pool, Span, expert, reference
from tests.native.conftest import gpt_oss_shape, make_expert, normal

pytestmark = pytest.mark.usefixtures("kernels")
SHAPE = ExpertShape(I4K, 64, 96)


@pytest.mark.parametrize("shape", [SHAPE, gpt_oss_shape(I8, 640, 384)], ids=["silu", "gpt-oss"])
def test_layer_equals_the_reference(shape: ExpertShape, rng: np.random.Generator) -> None:
    blocks = [None if number == 2 else make_expert(rng, shape) for number in range(5)]
    layer = Layer(shape, 5)
    for number, block in enumerate(blocks):
        if block is not None:
            layer.put(number, block)
    x, weights = normal(rng, 11, shape.hidden), normal(rng, 11, 3)
    ids = rng.integers(0, 5, (11, 3), dtype=np.int32)
    parts, y = layer.run(x, ids, weights)
    expected_parts, expected_y = reference.layer(x, ids, weights, blocks, shape)
    assert np.array_equal(parts, expected_parts)
    assert np.array_equal(y, expected_y)
    assert not parts[ids == 2].any()


def test_layer_computes_what_the_expert_alone_does(rng: np.random.Generator) -> None:
    block = make_expert(rng, SHAPE)
    layer = Layer(SHAPE, 2)
    layer.put(1, block)
    x = normal(rng, 3, SHAPE.hidden)
    parts, y = layer.run(x, np.ones((3, 1), np.int32))
    assert y is None
    assert np.array_equal(parts[:, 0], expert(block, SHAPE, x))


def test_rows_of_absent_experts_stay_and_count_in_the_sum(rng: np.random.Generator) -> None:
    layer = Layer(SHAPE, 2)
    layer.put(0, make_expert(rng, SHAPE))
    layer.put(1, make_expert(rng, SHAPE))
    layer.remove(1)
    x, weights = normal(rng, 1, SHAPE.hidden), np.float32([[0.5, 0.25]])
    ids = np.int32([[0, 1]])
    parts, y = np.full((1, 2, 64), 7, np.float32), np.empty((1, 64), np.float32)
    spans = [Span.of(array) for array in (x, ids, weights, parts, y)]
    layer.run_into(spans[0], 1, spans[1], 2, spans[2], spans[3], spans[4])
    assert (parts[0, 1] == 7).all()
    assert np.array_equal(y[0], np.float32(0.5) * parts[0, 0] + np.float32(0.25 * 7))


def test_no_tokens_and_no_experts_are_nothing_to_do() -> None:
    layer = Layer(SHAPE, 2)
    parts, y = layer.run(
        np.empty((0, 64), np.float32), np.empty((0, 2), np.int32), np.empty((0, 2), np.float32)
    )
    assert parts.shape == (0, 2, 64)
    assert y is not None
    assert y.shape == (0, 64)
    parts, _ = layer.run(np.ones((2, 64), np.float32), np.zeros((2, 2), np.int32))
    assert not parts.any()


@pytest.mark.parametrize("bad", [-1, 2, 2**31 - 1, -(2**31)])
def test_unknown_ids_are_refused_and_nothing_is_written(bad: int) -> None:
    layer = Layer(SHAPE, 2)
    x, ids = np.ones((2, 64), np.float32), np.zeros((2, 2), np.int32)
    ids[1, 1] = bad
    parts = np.full((2, 2, 64), 3, np.float32)
    with pytest.raises(ValueError, match="expert id"):
        layer.run_into(Span.of(x), 2, Span.of(ids), 2, None, Span.of(parts), None)
    assert (parts == 3).all()


def test_threads_of_python_share_a_pool(rng: np.random.Generator) -> None:
    shape = ExpertShape(I4K, 128, 512)
    layer = Layer(shape, 4)
    for number in range(4):
        layer.put(number, make_expert(rng, shape))
    batches = [normal(rng, 6, 128) for _ in range(12)]
    ids = rng.integers(0, 4, (6, 2), dtype=np.int32)
    pool = Pool(3)
    alone = [layer.run(x, ids)[0] for x in batches]
    with ThreadPoolExecutor(4) as workers:
        together = list(workers.map(lambda x: layer.run(x, ids, None, pool)[0], batches))
    assert np.array_equal(together, alone)


def test_experts_move_while_others_compute(rng: np.random.Generator) -> None:
    """A call sees the table that it began with: an expert's outputs, or none of them."""
    layer, block = Layer(SHAPE, 2), make_expert(rng, SHAPE)
    x, ids = normal(rng, 64, 64), np.zeros((64, 1), np.int32)
    whole = expert(block, SHAPE, x)

    def move() -> None:
        for _ in range(300):
            layer.put(0, block)
            layer.remove(0)

    with ThreadPoolExecutor(1) as workers:
        moving = workers.submit(move)
        while not moving.done():
            parts = layer.run(x, ids)[0][:, 0]
            assert not parts.any() or np.array_equal(parts, whole)
        moving.result()


def _in_child(layer: Layer, pool: Pool, queue: "multiprocessing.SimpleQueue[float]") -> None:
    parts, _ = layer.run(np.ones((2, 64), np.float32), np.zeros((2, 2), np.int32), pool=pool)
    queue.put(float(parts.sum()))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_without_the_pool(rng: np.random.Generator) -> None:
    layer, pool = Layer(SHAPE, 1), Pool(2)
    layer.put(0, make_expert(rng, SHAPE))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(layer, pool, queue))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    parts, _ = layer.run(np.ones((2, 64), np.float32), np.zeros((2, 2), np.int32), pool=pool)
    assert queue.get() == float(parts.sum())
