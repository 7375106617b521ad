"""Norms that the library computes: which modules these are, and that no bit changes."""

from pathlib import Path

import pytest
import torch

from miractl.native.kernels import Pool
from miractl.runtime import norms
from tests.runtime.models import load, make_model

WIDE = {
    "Qwen3Moe": {"head_dim": 16},
    "DeepseekV3": {"q_lora_rank": 16, "kv_lora_rank": 16},
}


class Plain(torch.nn.Module):
    """A norm under a name that says nothing."""

    def __init__(self, columns: int, plus: float = 0.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(columns))
        self.plus, self.eps = plus, eps

    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        rooted = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        y = (rooted * (self.plus + self.weight.float())).to(x.dtype)
        return y if gate is None else y * gate


class Centred(Plain):
    """No root mean square norm, though it looks like one."""

    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x - x.mean(-1, keepdim=True), gate)


def installed(module: torch.nn.Module, pool: Pool | None = None) -> torch.nn.Module:
    assert norms.install(module, pool) == 1
    return module


@pytest.mark.parametrize("columns", [16, 24, 33, 64, 100, 160, 2048, 2880, 5120])
@pytest.mark.parametrize("plus", [0.0, 1.0])
@pytest.mark.parametrize("threads", [1, 3])
@torch.no_grad()
def test_the_same_bits(columns: int, plus: float, threads: int) -> None:
    module = Plain(columns, plus)
    inputs = [
        size * torch.randn(*shape, columns)
        for size in (1e-4, 1, 1e4)
        for shape in ((), (1,), (1, 1), (2, 3, 4), (211,))
    ]
    inputs += [torch.zeros(2, columns), torch.randn(columns, 5).T, torch.randn(0, columns)]
    expected = [module(x) for x in inputs]
    installed(module, Pool(threads) if threads > 1 else None)
    for x, answer in zip(inputs, expected, strict=True):
        before = x.clone()
        assert torch.equal(module(x), answer)
        assert torch.equal(x, before)


@torch.no_grad()
def test_what_is_not_a_number_stays_so() -> None:
    module = installed(Plain(64))
    x = torch.randn(3, 64)
    x[0, 5], x[1, 5] = torch.nan, torch.inf
    y = module(x)
    assert y[:2].isnan().any(-1).all()
    assert y[2].isfinite().all()


@torch.no_grad()
def test_other_numbers_and_arguments_go_the_old_way() -> None:
    module = Plain(64)
    x, gate = torch.randn(3, 64), torch.randn(3, 64)
    half, gated = module(x.bfloat16()), module(x, gate)
    installed(module)
    assert torch.equal(module(x.bfloat16()), half)
    assert module(x.bfloat16()).dtype is torch.bfloat16
    assert torch.equal(module(x, gate), gated)
    assert torch.equal(module(x, gate=gate), gated)


def test_gradients_are_there_where_they_are_wanted() -> None:
    module, x = installed(Plain(64)), torch.randn(3, 64, requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None


def test_training_mode_makes_no_difference() -> None:
    module, x = installed(Plain(64)), torch.randn(3, 64)
    assert torch.equal(module.train()(x), module.eval()(x))


@pytest.mark.parametrize(
    "module",
    [
        Centred(64),
        torch.nn.LayerNorm(64),
        torch.nn.LayerNorm(64, bias=False),
        torch.nn.Linear(64, 64, bias=False),
        torch.nn.Embedding(64, 64),
        Plain(64).bfloat16(),
        Plain(7),
    ],
    ids=lambda module: type(module).__name__,
)
def test_everything_else_stays(module: torch.nn.Module) -> None:
    assert norms.install(module, None) == 0
    assert "forward" not in vars(module)


@pytest.mark.parametrize("family", ["Qwen3Moe", "Mixtral", "DeepseekV3", "GptOss"])
def test_all_norms_of_a_family_are_found(tmp_path: Path, family: str) -> None:
    make_model(tmp_path, family, hidden_size=64, **WIDE.get(family, {}))
    engine = load(tmp_path, 8)
    try:
        modules = [m for m in engine.model.modules() if type(m).__name__.endswith("RMSNorm")]
        assert len(modules) > 3
        assert all("forward" in vars(module) for module in modules)
    finally:
        engine.close()
