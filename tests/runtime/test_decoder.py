"""Layers of one new token by the library: the same answers, and only where it is asked for that."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ContinuousBatchingConfig, DynamicCache, GenerationConfig

from miractl.runtime import decoder, paged
from miractl.runtime.decoder import LayerStep
from miractl.runtime.engine import Engine
from miractl.runtime.moe_block import RoutedBlock
from tests.runtime.models import make_model, options

WIDE = {"hidden_size": 128, "head_dim": 32}
IDS = torch.randint(1, 96, (2, 24), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Any]:
    engines: list[Engine] = []

    def loaded(family: str = "Qwen3Moe", dense: str = "int8", **changes: Any) -> Engine:
        folder = tmp_path / f"{len(engines)}"
        make_model(folder, family, **{**WIDE, **changes})
        engines.append(Engine.load(dataclasses.replace(options(folder, "100%"), dense=dense)))
        return engines[-1]

    yield loaded
    for engine in engines:
        engine.close()


def steps_of(engine: Engine) -> list[LayerStep]:
    found = (vars(module).get("forward") for module in engine.model.modules())
    return [forward for forward in found if isinstance(forward, LayerStep)]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each call of the library."""
    calls: list[int] = []
    run = decoder.AttentionHalf.run_at

    def run_at(self: Any, kept: int, tokens: int, *rest: Any) -> bool:
        calls.append(tokens)
        return run(self, kept, tokens, *rest)

    monkeypatch.setattr(decoder.AttentionHalf, "run_at", run_at)
    return calls


@torch.no_grad()
def logits(engine: Engine, ids: torch.Tensor, prompt: int, **told: Any) -> torch.Tensor:
    """Of a prompt, and then of one token after the other."""
    past = DynamicCache(config=engine.model.config)
    parts = [ids[:, :prompt], *ids[:, prompt:].split(1, dim=1)]
    return torch.cat([engine.model(p, cache=past, **told).logits for p in parts], dim=1)


def stocked(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Every layer is the stock one."""
    for step in steps_of(engine):
        monkeypatch.setattr(step, "_kept", lambda *_: None)
    return monkeypatch


FAMILIES = {
    "Qwen3Moe": {},
    "Qwen2Moe": {"decoder_sparse_step": 1, "num_hidden_layers": 3},
    "Mixtral": {},
    "Olmoe": {},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch", [1, 2])
def test_the_answers_of_the_stock_layers(
    load: Any, family: str, batch: int, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(family, **FAMILIES[family])
    assert len(steps_of(engine)) == engine.model.config.num_hidden_layers
    counted.clear()
    found = logits(engine, IDS[:batch], 9)
    layers = len(steps_of(engine))
    assert counted == [batch] * layers * 15
    with monkeypatch.context() as patch:
        stocked(engine, patch)
        torch.testing.assert_close(found, logits(engine, IDS[:batch], 9), rtol=1e-3, atol=1e-3)
    assert len(counted) == layers * 15


def test_rooms_that_are_full_are_made_larger(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load()
    monkeypatch.setattr("miractl.runtime.kv.LEAST_ROOM", 2)
    found = logits(engine, IDS, 5)
    torch.testing.assert_close(found, logits(engine, IDS, 23), rtol=1e-2, atol=1e-2)


# Their attention has sinks, or other matrices; the last one adds half of what it computes.
@pytest.mark.parametrize("family", ["GptOss", "DeepseekV3", "GraniteMoe"])
def test_other_layers_stay_what_they_are(load: Any, family: str) -> None:
    changes = {"residual_multiplier": 0.5} if family == "GraniteMoe" else {}
    assert not steps_of(load(family, **changes))


def test_models_of_numbers_are_left_alone(load: Any) -> None:
    assert not steps_of(load(dense="as-is"))


@torch.no_grad()
def test_whatever_else_is_asked_for_is_the_stock_layers_affair(
    load: Any, counted: list[int]
) -> None:
    engine = load()
    layers = len(steps_of(engine))
    counted.clear()
    mask = torch.ones(2, 10)
    mask[0, :3] = 0  # padding
    past = DynamicCache(config=engine.model.config)
    engine.model(IDS[:, :9], cache=past, attention_mask=mask[:, :9])
    engine.model(IDS[:, 9:10], cache=past, attention_mask=mask)
    engine.model(IDS[:, 10:13], cache=past)  # several tokens
    engine.model(IDS[:, :1])  # without a cache
    assert not counted
    engine.model(IDS[:, 13:14], cache=past)
    assert counted == [2] * layers
    past.crop(-3)  # the stock layers put what is left into rooms again
    for at in (11, 12):
        engine.model(IDS[:, at : at + 1], cache=past)
    assert counted == [2] * 2 * layers
    assert past.get_seq_length() == 13


@torch.no_grad()
def test_who_listens_to_a_module_hears_it(load: Any, counted: list[int]) -> None:
    engine = load()
    model, layers = engine.model, len(steps_of(engine))
    heard: list[str] = []
    hooks = [
        model.model.layers[1].self_attn.register_forward_hook(lambda *_: heard.append("attention")),
        model.model.layers[1].mlp.experts.register_forward_hook(lambda *_: heard.append("experts")),
    ]
    counted.clear()
    logits(engine, IDS, 23)
    assert heard == ["attention", "experts"] * 2
    assert not counted
    for hook in hooks:
        hook.remove()
    logits(engine, IDS, 23)
    assert counted == [2] * layers
    assert len(heard) == 4
    model.model.layers[1].mlp.gate.register_forward_pre_hook(lambda *_: heard.append("router"))
    logits(engine, IDS, 23)
    assert heard[4:] == ["router"] * 2
    assert len(counted) == 2 * layers
    past = DynamicCache(config=model.config)
    model(IDS[:, :5], cache=past)
    asked = model(IDS[:, 5:6], cache=past, output_router_logits=True, output_hidden_states=True)
    assert len(asked.router_logits) == layers
    assert len(asked.hidden_states) == layers + 1


@torch.no_grad()
def test_a_hook_may_change_what_a_router_sees(load: Any) -> None:
    engine = load()
    plain = logits(engine, IDS, 20)
    gate = engine.model.model.layers[0].mlp.gate
    hook = gate.register_forward_pre_hook(lambda module, args: (args[0].flip(-1),))
    changed = logits(engine, IDS, 20)
    hook.remove()
    assert not torch.allclose(plain[:, -1], changed[:, -1])
    assert torch.equal(plain, logits(engine, IDS, 20))


def test_experts_are_called_directly_where_the_block_is_the_usual_one(load: Any) -> None:
    assert all(isinstance(step.rest, RoutedBlock) for step in steps_of(load()))
    shared = load("Qwen2Moe", **FAMILIES["Qwen2Moe"])  # its block has an expert for all tokens
    assert not any(isinstance(step.rest, RoutedBlock) for step in steps_of(shared))


def generated(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    found = engine.model.generate_batch(
        prompts,
        generation_config=GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=-1),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=16, num_blocks=24, max_batch_tokens=32, use_cuda_graph=False,
            use_async_batching=False, auto_switch_to_flash=False,
        ),
    )  # fmt: skip
    return [answer.generated_tokens for answer in found.values()]


def test_requests_in_one_batch(
    load: Any, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load()
    prompts = [IDS[0, :n].tolist() for n in (3, 15, 20)]
    counted.clear()
    found = generated(engine, prompts)
    assert counted.count(3) >= 3 * 5
    served = len(counted)
    with monkeypatch.context() as patch:
        patch.setattr(paged, "find_kept", lambda *_: None)
        assert generated(engine, prompts) == found
    assert len(counted) == served
