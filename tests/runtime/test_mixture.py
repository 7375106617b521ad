"""The mixture against its formula: any grouping, any shape, the same result."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from miractl.runtime import mixture

EXPERTS, HIDDEN, INNER = 6, 10, 7


def gate(gate_up: torch.Tensor) -> torch.Tensor:
    first, second = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(first) * second


def experts_module(transposed: bool, gated: bool) -> Any:
    return SimpleNamespace(
        has_gate=gated,
        is_transposed=transposed,
        has_post_expert_norm=False,
        act_fn=torch.nn.functional.gelu,
        _apply_gate=gate,
    )


def weights(transposed: bool, gated: bool, biased: bool, dtype: torch.dtype) -> list[Any]:
    first, rows = ("gate_up_proj", 2 * INNER) if gated else ("up_proj", INNER)
    shapes = {first: (rows, HIDDEN), "down_proj": (HIDDEN, INNER)}
    found = []
    for _ in range(EXPERTS):
        own = {name: torch.randn(shape, dtype=dtype) for name, shape in shapes.items()}
        if biased:
            own |= {f"{name}_bias": torch.randn(len(m), dtype=dtype) for name, m in own.items()}
        if transposed:
            own |= {name: own[name].T.contiguous() for name in shapes}
        found.append(own)
    return found


def formula(
    module: Any, own: list[Any], x: torch.Tensor, ids: Any, scores: torch.Tensor
) -> torch.Tensor:
    y = torch.zeros(len(x), HIDDEN, dtype=torch.float64)
    for t, row in enumerate(ids):
        for k, expert in enumerate(row):
            w = {name: value.double() for name, value in own[expert].items()}
            turn = (lambda m: m) if module.is_transposed else (lambda m: m.T)
            first = "gate_up_proj" if module.has_gate else "up_proj"
            hidden = x[t].double() @ turn(w[first]) + w.get(f"{first}_bias", 0)
            hidden = gate(hidden) if module.has_gate else module.act_fn(hidden)
            out = hidden @ turn(w["down_proj"]) + w.get("down_proj_bias", 0)
            y[t] += scores[t, k].double() * out
    return y


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_grouping_is_the_formula(
    transposed: bool, gated: bool, biased: bool, tokens: int, dtype: torch.dtype
) -> None:
    module, own = experts_module(transposed, gated), weights(transposed, gated, biased, dtype)
    x = torch.randn(tokens, HIDDEN).to(dtype)
    ids = np.array([np.random.default_rng(t).permutation(EXPERTS)[:3] for t in range(tokens)])
    scores = torch.rand(tokens, 3).to(dtype)
    expected = formula(module, own, x, ids, scores)
    there = sorted({*ids.reshape(-1).tolist()}, reverse=True)
    found = []
    for groups in ([there], [there[:1], there[1:]], [[expert] for expert in there]):
        arrivals = ([(expert, own[expert]) for expert in group] for group in groups)
        found.append(mixture.mix(module, x, ids, scores, arrivals))
    assert all(torch.equal(found[0], other) for other in found)
    assert found[0].dtype is dtype
    error = (found[0].double() - expected).norm() / expected.norm()
    assert error < (1e-5 if dtype is torch.float32 else 2e-2)


def test_a_token_may_ask_an_expert_twice() -> None:
    module, own = experts_module(False, True), weights(False, True, False, torch.float32)
    x, ids, scores = torch.randn(1, HIDDEN), np.array([[2, 2]]), torch.rand(1, 2)
    found = mixture.mix(module, x, ids, scores, [[(2, own[2])]])
    assert torch.allclose(found.double(), formula(module, own, x, ids, scores), atol=1e-5)


def test_an_expert_that_never_comes_is_an_error() -> None:
    module, own = experts_module(False, True), weights(False, True, False, torch.float32)
    ids = np.array([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match="Got 2 of 4 pairs"):
        mixture.mix(module, torch.randn(2, HIDDEN), ids, torch.rand(2, 2), [[(1, own[1])]])


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    module, own = experts_module(False, True), weights(False, True, False, torch.float32)
    x, ids, scores = torch.randn(4, HIDDEN), np.array([[0, 1]] * 4), torch.rand(4, 2)
    group = [(expert, own[expert]) for expert in (0, 1)]
    first = mixture.mix(module, x, ids, scores, [group])
    monkeypatch.setattr(mixture, "available", lambda: False)
    assert torch.equal(mixture.mix(module, x, ids, scores, [group]), first)
