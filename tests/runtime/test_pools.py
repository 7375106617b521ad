"""Layers whose experts have two shapes: a pool of slots for each, true figures, exact outputs.

No family of transformers that is managed here has such layers, so one is made: Qwen3 MoE, each
layer built from its own part of the config (`per_layer_config`, as Step 3.7 and dots.note do).
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen

from miractl.errors import MiractlError, UsageError
from miractl.plan.pools import plan_pools
from miractl.runtime import verify as proof
from miractl.runtime.engine import Engine
from miractl.runtime.packing import pack
from miractl.telemetry.snapshot import Snapshot
from tests.runtime.models import make_model, options

WIDE, NARROW, HIDDEN, EXPERTS, TOP_K = 24, 8, 32, 8, 2
WIDTHS = (WIDE, NARROW, WIDE, NARROW)
BYTES = {width: 3 * width * HIDDEN * 4 for width in (WIDE, NARROW)}  # of one expert, float32
EVERYTHING = EXPERTS * sum(BYTES[width] for width in WIDTHS)


class UnevenLayer(qwen.Qwen3MoeDecoderLayer):
    """A layer of its own part of the config."""

    def __init__(self, config: transformers.Qwen3MoeConfig, layer_idx: int) -> None:
        super().__init__(config.per_layer_config[layer_idx], layer_idx)
        self.self_attn.config = config  # which the choice of a kernel reaches


@pytest.fixture
def uneven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with layers of two shapes."""
    monkeypatch.setattr(qwen, "Qwen3MoeDecoderLayer", UnevenLayer)
    narrow = {n: {"moe_intermediate_size": NARROW} for n, w in enumerate(WIDTHS) if w == NARROW}
    make_model(tmp_path, "Qwen3Moe", num_hidden_layers=len(WIDTHS), per_layer_config=narrow)
    return tmp_path


def budget(share: float) -> int:
    return int(share * EVERYTHING)


@pytest.mark.parametrize("policy", ["learned", "lru", "heat"])
@torch.no_grad()
def test_figures_of_pools_add_up_and_their_budget_holds(uneven: Path, policy: str) -> None:
    allowed = budget(0.4)
    engine = Engine.load(replace(options(uneven, f"{allowed}B"), policy=policy))
    try:
        prompt = torch.randint(1, 96, (1, 40), generator=torch.Generator().manual_seed(1))
        engine.model.generate(prompt, max_new_tokens=24, do_sample=False)
        found, rows = engine.snapshot(), engine.expert_rows()
        arena = sum(
            view.nbytes for at in range(found.cache.slots) for view in engine.arena[at].values()
        )
    finally:
        engine.close()
    cache, pools = found.cache, found.cache.pools
    assert [(pool.layers, pool.expert_bytes) for pool in pools] == [
        ((0, 2), BYTES[WIDE]),
        ((1, 3), BYTES[NARROW]),
    ]
    assert arena == found.memory.arena_bytes == sum(p.slots * p.expert_bytes for p in pools)
    assert arena <= cache.budget_bytes == allowed < arena + BYTES[NARROW]
    for name in ("slots", "budget_bytes", "resident_bytes"):
        assert getattr(cache, name) == sum(getattr(pool, name) for pool in pools)
    for pool in pools:
        assert 0 < pool.resident_bytes <= pool.slots * pool.expert_bytes <= pool.budget_bytes
        assert pool.slots == pytest.approx(0.4 * EXPERTS * len(pool.layers), abs=1)
        held = sum(row.resident for row in rows if row.layer in pool.layers)
        assert held * pool.expert_bytes <= pool.resident_bytes
    assert cache.resident == sum(row.resident for row in rows)
    assert (cache.hits, cache.misses) == tuple(
        sum(getattr(row, name) for row in rows) for name in ("hits", "misses")
    )
    bets = found.prefetch
    assert bets.issued == bets.used + bets.late + bets.wasted + bets.cancelled + bets.staged
    assert bets.wasted * BYTES[NARROW] <= bets.wasted_bytes < found.transfer.bytes
    assert Snapshot.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_outputs_are_those_of_the_stock_model(uneven: Path) -> None:
    cases = {case.name: case for case in proof.verify(options(uneven, None))}
    assert all(case.passed for case in cases.values())
    assert cases["top-k slots for all layers: waves"].slots == 2 * TOP_K
    assert cases["predictions always wrong"].wasted > 0
    assert cases[proof.CONTROL].difference > 1e-2


def test_one_shape_is_one_pool(tmp_path: Path) -> None:
    make_model(tmp_path, "Qwen3Moe")
    engine = Engine.load(options(tmp_path, "50%"))
    try:
        (pool,) = engine.snapshot().cache.pools
        assert (pool.layers, pool.slots) == ((0, 1, 2), 12)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"expert_memory": f"{2 * BYTES[WIDE]}B"}, "is too little for 2 shapes of experts"),
        (
            {"expert_memory": "50%", "sets": 2},
            "--sets is for experts of one shape, the model has 2",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(
    uneven: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        Engine.load(replace(options(uneven, None), **changes))


def test_experts_without_a_common_record_are_not_packed(uneven: Path, tmp_path: Path) -> None:
    with pytest.raises(MiractlError, match="experts of 2 shapes, which have no common record"):
        pack(uneven, tmp_path / "packed", "as-is")
    assert not (tmp_path / "packed.partial").exists()


def test_a_budget_is_shared_by_bytes_and_what_is_left_over_goes_on() -> None:
    plan = plan_pools(1000, (90, 10), (0, 1, 1, 0), experts=8, top_k=2, max_staged=5)
    assert [(pool.slots, pool.budget) for pool in plan.pools] == [(10, 900), (10, 100)]
    assert plan.staging_limit == 2 + 2  # of 10 slots each
    assert (plan.layers(0), plan.layers(1)) == ((0, 3), (1, 2))
    assert plan.expert_bytes == 50
    tight = plan_pools(250, (90, 10), (0, 1), experts=8, top_k=2, max_staged=4)
    assert [(pool.slots, pool.budget) for pool in tight.pools] == [(2, 180), (7, 70)]
    every = plan_pools(10_000, (90, 10), (0, 1), experts=8, top_k=2, max_staged=4)
    assert [pool.slots for pool in every.pools] == [8, 8]
    assert every.staging_limit == 0
