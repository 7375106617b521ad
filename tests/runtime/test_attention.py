"""Attention of one token by the library: near torch's, and only where it was asked for."""

import dataclasses
import inspect
from pathlib import Path

import pytest
import torch
from transformers import AttentionInterface, DynamicCache, Qwen3MoeForCausalLM

from miractl.native.kernels import Pool
from miractl.runtime import attention, routers
from miractl.runtime.engine import Engine
from tests.runtime.models import make_model, options

STOCK = getattr(AttentionInterface()["sdpa"], "_stock", None) or AttentionInterface()["sdpa"]
accepted = inspect.signature(Qwen3MoeForCausalLM.forward).parameters
CACHE = "cache" if "cache" in accepted else "past_key_values"


class Layer(torch.nn.Module):
    """What an attention function asks of its module."""

    is_causal = True

    def __init__(self, group: int) -> None:
        super().__init__()
        self.num_key_value_groups = group


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the library was asked, call by call."""
    calls: list[bool] = []
    attend = attention.attend

    def counted(*args: object) -> torch.Tensor:
        calls.append(True)
        return attend(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(attention, "attend", counted)
    return calls


def served(group: int, threads: int = 1) -> Layer:
    layer = Layer(group)
    attention.install(layer, Pool(threads) if threads > 1 else None)
    return layer


def states(
    batch: int, heads: int, group: int, tokens: int, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As a model has them: heads after tokens for the query, room behind keys and values."""
    query = torch.randn(batch, 1, heads * group, dim).transpose(1, 2)
    room = torch.randn(2, batch, heads, tokens + 7, dim)[..., :tokens, :]
    return query, room[0], room[1]


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("dim", [7, 64, 80, 128])
@pytest.mark.parametrize("batch", [1, 3])
@torch.no_grad()
def test_near_torch(asked: list[bool], group: int, dim: int, batch: int) -> None:
    lengths = [1, 2, 3, 5, 15, 63, 64, 65, 67, 200, 600]
    for threads in (1, 3):
        layer = served(group, threads)
        for tokens in lengths:
            q, k, v = states(batch, 4, group, tokens, dim)
            for scaling in (None, 0.3):
                expected, _ = STOCK(layer, q, k, v, None, scaling=scaling)
                found, weights = AttentionInterface()["sdpa"](layer, q, k, v, None, scaling=scaling)
                assert weights is None
                assert found.is_contiguous()
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(asked) == 4 * len(lengths)


@torch.no_grad()
def test_threads_do_not_change_a_bit() -> None:
    q, k, v = states(2, 4, 8, 300, 128)
    one, more = (attention.attend(q, k, v, 0.1, pool) for pool in (None, Pool(3)))
    assert torch.equal(one, more)


@torch.no_grad()
def test_large_scores_and_what_is_not_a_number() -> None:
    q, k, v = states(1, 2, 2, 150, 16)
    q, k = 40 * q, 40 * k  # one key takes all
    layer = served(2)
    expected, _ = STOCK(layer, q, k, v, None)
    torch.testing.assert_close(attention.attend(q, k, v, 0.25, None), expected)
    k[0, 1, 149, 3] = torch.nan
    y = attention.attend(q, k, v, 0.25, None)
    assert y[0, 0, 2:].isnan().all()
    assert y[0, 0, :2].isfinite().all()


def test_anything_else_is_the_affair_of_torch(asked: list[bool]) -> None:
    layer, other = served(2), Layer(2)
    sdpa = AttentionInterface()["sdpa"]
    q, k, v = states(1, 2, 2, 5, 16)
    mask = torch.tensor([True, True, False, True, True]).view(1, 1, 1, 5)
    calls = [
        ((other, q, k, v, None), {}),
        ((layer, q, k, v, mask), {}),
        ((layer, q.bfloat16(), k.bfloat16(), v.bfloat16(), None), {}),
        ((layer, q.repeat(1, 1, 5, 1), k, v, None), {}),
        ((layer, q, k, v[..., :8], None), {}),
        ((layer, q, k, v, None), {"position_bias": torch.randn(1, 4, 1, 5)}),
        ((layer, q.clone().requires_grad_(), k, v, None), {}),
    ]
    for args, more in calls:
        assert torch.equal(sdpa(*args, **more)[0], STOCK(*args, **more)[0])
    with pytest.raises(ValueError, match="softcap"):
        sdpa(layer, q, k, v, None, softcap=3.0)
    assert not asked
    sdpa(layer, q, k, v, None)
    assert asked


@pytest.mark.parametrize("dense", ["as-is", "int8"])
@torch.no_grad()
def test_only_models_of_codes_are_served(tmp_path: Path, asked: list[bool], dense: str) -> None:
    stock = make_model(tmp_path, "Qwen3Moe", hidden_size=64, head_dim=32)
    engine = Engine.load(dataclasses.replace(options(tmp_path, "100%"), dense=dense))
    try:
        ids = torch.arange(20)[None]
        past = DynamicCache(config=engine.model.config)
        engine.model(ids[:, :-1], **{CACHE: past})
        last = engine.model(ids[:, -1:], **{CACHE: past}).logits[0, -1]
        whole = engine.model(ids).logits[0, -1]
        assert len(asked) == (3 if dense == "int8" else 0)
        torch.testing.assert_close(last, whole, rtol=1e-2, atol=1e-2)
        gates = [module for module in engine.model.modules() if hasattr(module, "top_k")]
        replaced = ["forward" in vars(gate) for gate in gates]
        assert replaced == [dense == "int8"] * 3
        stock(ids[:, -1:])  # another model of the process
        assert len(asked) == (3 if dense == "int8" else 0)
        assert all(routers.find_router(gate) for gate in stock.modules() if hasattr(gate, "top_k"))
    finally:
        engine.close()
