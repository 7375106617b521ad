"""A cache layer with room: the values are those of transformers' own, whatever is done to it."""

import copy

import torch
from transformers import Qwen3MoeConfig
from transformers.cache_utils import DynamicCache, DynamicLayer

from miractl.runtime import kv


def states(tokens: int, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, tokens, 8), torch.randn(batch, 3, tokens, 6)


def both(*layers: DynamicLayer, tokens: int) -> None:
    keys, values = states(tokens, layers[0].keys.shape[0] if layers[0].is_initialized else 2)
    first, *others = [layer.update(keys, values) for layer in layers]
    for other in others:
        assert all(map(torch.equal, first, other))


def test_the_same_values_as_it_grows() -> None:
    ours, stock = kv.GrowingLayer(), DynamicLayer()
    for tokens in (5, *[1] * 150, 200, 1):
        both(ours, stock, tokens=tokens)
    assert ours.get_seq_length() == stock.get_seq_length() == 356


def test_a_token_moves_nothing() -> None:
    layer = kv.GrowingLayer()
    layer.update(*states(100))
    at = layer.keys.data_ptr(), layer.values.data_ptr()
    for _ in range(kv.LEAST_ROOM):
        layer.update(*states(1))
        assert (layer.keys.data_ptr(), layer.values.data_ptr()) == at
    layer.update(*states(1))
    assert layer.keys.data_ptr() != at[0]


def test_whatever_else_is_done_to_it() -> None:
    ours, stock = kv.GrowingLayer(), DynamicLayer()
    both(ours, stock, tokens=9)
    for act in (
        lambda layer: layer.crop(-4),
        lambda layer: layer.batch_repeat_interleave(2),
        lambda layer: layer.reorder_cache(torch.tensor([3, 1, 0, 2])),
        lambda layer: layer.batch_select_indices(torch.tensor([1, 2])),
        lambda layer: layer.reset(),
    ):
        act(ours)
        act(stock)
        both(ours, stock, tokens=1)
        both(ours, stock, tokens=3)


def test_a_copy_goes_its_own_way() -> None:
    layer = kv.GrowingLayer()
    layer.update(*states(5))
    other = copy.deepcopy(layer)
    layer.update(*states(1))
    kept = layer.keys.clone()
    other.update(*states(1))
    assert torch.equal(layer.keys, kept)
    assert not torch.equal(other.keys, kept)


def test_caches_have_it_where_they_had_the_usual_one() -> None:
    kv.install()
    config = Qwen3MoeConfig(num_hidden_layers=2)
    assert {type(layer) for layer in DynamicCache(config=config).layers} == {kv.GrowingLayer}
    config = Qwen3MoeConfig(num_hidden_layers=2, use_sliding_window=True, max_window_layers=1)
    config.layer_types = ["full_attention", "sliding_attention"]
    kinds = [type(layer).__name__ for layer in DynamicCache(config=config).layers]
    assert kinds == ["GrowingLayer", "DynamicSlidingWindowLayer"]
