"""Routers that the library computes: which modules these are, and that they choose alike."""

from typing import Any

import pytest
import torch
import transformers
from torch.nn.functional import linear

from miractl.native.kernels import Pool
from miractl.runtime import routers

TINY = {"hidden_size": 64, "num_experts_per_tok": 3}


def of_family(family: str, **settings: Any) -> torch.nn.Module:
    """The router class of a family's modeling file, random."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**TINY, **settings)
    file = getattr(transformers, f"{family}PreTrainedModel").__module__
    kind = next(
        kind
        for name, kind in vars(__import__(file, fromlist=["_"])).items()
        if name.endswith(("TopKRouter", "TopkRouter"))
    )
    module: torch.nn.Module = kind(config)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


KNOWN = [
    ("Qwen3Moe", {"num_experts": 16, "norm_topk_prob": True}),
    ("Qwen3Moe", {"num_experts": 130, "norm_topk_prob": False}),
    ("Olmoe", {"num_experts": 33}),
    ("Mixtral", {"num_local_experts": 8}),
    ("GraniteMoe", {"num_local_experts": 12}),
]


@pytest.mark.parametrize(("family", "settings"), KNOWN)
@pytest.mark.parametrize("threads", [1, 3])
@torch.no_grad()
def test_the_same_choice_and_nearly_the_same_scores(
    family: str, settings: dict[str, Any], threads: int
) -> None:
    module = of_family(family, **settings)
    inputs = [size * torch.randn(t, 64) for size in (1e-3, 1.0) for t in (1, 2, 4, 5, 40)]
    expected = [module(x) for x in inputs]
    assert routers.install(module, Pool(threads) if threads > 1 else None) == 1
    for x, (logits, scores, ids) in zip(inputs, expected, strict=True):
        found = module(x)
        torch.testing.assert_close(found[0], logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[1], scores, rtol=1e-4, atol=1e-6)
        assert torch.equal(found[2], ids)


@torch.no_grad()
def test_a_token_is_routed_alike_in_any_company() -> None:
    router = routers.find_router(of_family("Qwen3Moe", num_experts=16))
    assert router is not None
    x = torch.randn(4, 64)
    together = router.choose(x, Pool(2))
    alone = [router.choose(row[None], None) for row in x]
    assert together is not None
    for part, ones in zip(together, zip(*(a for a in alone if a), strict=True), strict=True):
        assert torch.equal(part, torch.cat(ones))


@torch.no_grad()
def test_where_experts_are_equal_the_module_itself_chooses() -> None:
    module = of_family("Qwen3Moe", num_experts=16)
    stock = module.forward
    assert routers.install(module, None) == 1
    module.weight[5] = module.weight[3]  # type: ignore[index, operator]
    router = routers.find_router(of_family("Qwen3Moe", num_experts=16))
    assert router is not None
    assert router.choose(torch.zeros(1, 64), None) is None
    assert router.choose(torch.full((1, 64), torch.nan), None) is None
    pair = module.weight[3][None] * 2  # type: ignore[index]
    for x in (torch.zeros(1, 64), pair):
        assert all(map(torch.equal, module(x), stock(x)))


@torch.no_grad()
def test_other_numbers_and_shapes_go_the_old_way() -> None:
    module = of_family("Qwen3Moe", num_experts=16)
    x = torch.randn(2, 2, 64)
    expected = module(x)
    routers.install(module, None)
    assert all(map(torch.equal, module(x), expected))
    assert torch.equal(module(x.view(4, 64).T.contiguous().T)[2], expected[2])
    with torch.enable_grad():
        wanted = x.view(4, 64).clone().requires_grad_()
        module(wanted)[0].sum().backward()
    assert wanted.grad is not None


class Sigmoid(torch.nn.Module):
    """Looks like one, and scores by something else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16, 64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = linear(x, self.weight)
        scores, ids = logits.sigmoid().topk(3)
        return logits, scores, ids


@pytest.mark.parametrize(
    "module",
    [
        Sigmoid(),
        of_family("GptOss", num_local_experts=8),
        of_family("DeepseekV3", n_routed_experts=8, n_group=2, topk_group=1),
        of_family("Qwen3Moe", num_experts=16).bfloat16(),
        torch.nn.Linear(64, 16, bias=False),
        torch.nn.Embedding(16, 64),
        torch.nn.RMSNorm(64),
    ],
    ids=lambda module: type(module).__name__,
)
def test_everything_else_stays(module: torch.nn.Module) -> None:
    assert routers.install(module, None) == 0
    assert "forward" not in vars(module)
