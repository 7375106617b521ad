"""Outputs equal the stock model's, whatever the cache does."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from miractl.native.residency import Role
from miractl.policy.keys import ExpertKey
from miractl.runtime import source
from miractl.runtime.engine import Engine
from miractl.runtime.ticket import Course
from miractl.units import MIB
from tests.runtime.models import FAMILIES, load, make_model, weight_map

PROMPT = torch.tensor([[5, 17, 80, 3, 44, 9, 61, 30, 2, 77, 12, 50]])


@pytest.mark.parametrize("fused", [False, True], ids=["published", "fused"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_family_and_layout(tmp_path: Path, family: str, fused: bool) -> None:
    stock = make_model(tmp_path, family, fused)
    expected = stock(PROMPT).logits
    text = stock.generate(PROMPT, max_new_tokens=8, do_sample=False)
    top_k, experts = FAMILIES[family]["num_experts_per_tok"], 4
    for slots in (top_k, 2 * experts):  # waves, then a small cache
        engine = load(tmp_path, slots)
        try:
            assert (engine.model(PROMPT).logits - expected).abs().max() <= 1e-5
            assert torch.equal(
                engine.model.generate(PROMPT, max_new_tokens=8, do_sample=False), text
            )
        finally:
            engine.close()


def test_published_layouts_are_one_tensor_an_expert_over_several_shards(tmp_path: Path) -> None:
    """What the test above stands on: the two layouts differ, and experts are split over shards."""
    make_model(tmp_path / "published", "Qwen3Moe")
    make_model(tmp_path / "fused", "Qwen3Moe", fused=True)
    published, fused = weight_map(tmp_path / "published"), weight_map(tmp_path / "fused")
    assert sum("experts" in name for name in published) == 3 * 8 * 3
    assert sum("experts" in name for name in fused) == 3 * 2
    assert len(set(published.values())) > 1


def slow_down(engine: Engine) -> None:
    """Make transfers slower than experts and faster than layers: then bets pay."""
    mover = engine.cache.transfers.mover  # type: ignore[attr-defined]
    move = mover.move

    def slowly(key: ExpertKey, slot: int, chunks: int) -> Course:
        time.sleep(2e-3)
        moved: int = yield from move(key, slot, chunks)
        return moved

    mover.move = slowly
    for layer in engine.model.model.layers:
        layer.register_forward_pre_hook(lambda *_: time.sleep(5e-3))


@pytest.mark.parametrize(
    ("mode", "chunk"), [("lookahead", MIB), ("lookahead", 2048), ("markov", MIB)]
)
@torch.no_grad()
def test_both_predictors_prefetch_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, chunk: int
) -> None:
    monkeypatch.setattr(source, "DISK_CHUNK", chunk)
    stock = make_model(tmp_path, "Qwen3Moe")
    text = stock.generate(PROMPT, max_new_tokens=48, do_sample=False)
    engine = load(tmp_path, 14, prediction_mode=mode)
    assert (engine.cache.transfers.chunks > 1) == (chunk < MIB)
    slow_down(engine)
    try:
        assert torch.equal(engine.model.generate(PROMPT, max_new_tokens=48, do_sample=False), text)
        facts = engine.snapshot()
    finally:
        engine.close()
    bets = facts.prefetch
    assert bets.mode == mode
    assert bets.issued > 0
    assert mode == "markov" or bets.used > 0  # tables know little after so few tokens
    assert bets.issued == bets.used + bets.late + bets.wasted + bets.cancelled + bets.staged


@torch.no_grad()
def test_the_figures_add_up(tmp_path: Path) -> None:
    make_model(tmp_path, "Qwen2Moe")  # MoE in every second layer only
    engine = load(tmp_path, 7)
    try:
        engine.model.generate(PROMPT, max_new_tokens=10, do_sample=False)
        facts, rows = engine.snapshot(), engine.expert_rows()
        resident = engine.cache.residency.members(Role.RESIDENT)
    finally:
        engine.close()
    cache, work = facts.cache, facts.work
    assert (work.steps, work.tokens) == (10, PROMPT.shape[1] + 9)
    assert facts.model.layers == (1, 3)
    assert {(row.layer, row.expert) for row in rows} == {(x, e) for x in (1, 3) for e in range(6)}
    for layer in facts.model.layers:
        own = [row for row in rows if row.layer == layer]
        assert sum(row.activations for row in own) == work.tokens * facts.model.top_k
    assert cache.hits + cache.misses == cache.lookups == sum(row.hits + row.misses for row in rows)
    assert cache.lookups == sum(layer.lookups for layer in facts.layers)
    assert cache.resident_bytes <= cache.budget_bytes
    assert sum(row.resident for row in rows) == cache.resident == len(resident)
    assert facts.switch.count == sum(facts.switch.buckets) == cache.misses
    assert facts.transfer.bytes > 0


@torch.no_grad()
def test_long_steps_are_split_and_stay_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = make_model(tmp_path, "Mixtral")
    monkeypatch.setattr("miractl.runtime.runner.PART_BYTES", 5 * 2 * 32 * 4)  # 5 tokens
    engine = load(tmp_path, 6)
    sizes, mix = [], engine.compute.mix

    def counted(layer: int, module: Any, x: torch.Tensor, *rest: Any) -> Any:
        sizes.append(len(x))
        return mix(layer, module, x, *rest)

    monkeypatch.setattr(engine.compute, "mix", counted)
    try:
        difference = (engine.model(PROMPT).logits - stock(PROMPT).logits).abs().max()
        assert engine.snapshot().work.steps == 1
    finally:
        engine.close()
    assert difference <= 1e-5
    assert sizes == [5, 5, 2] * 3
