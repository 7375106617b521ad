"""Rotary positions by the library: where it is the usual formula, and that no bit changes."""

import pytest
import torch
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.qwen3_moe import modeling_qwen3_moe

from miractl.runtime import rotary
from tests.runtime.models import make_model

STOCK = getattr(modeling_qwen3_moe.apply_rotary_pos_emb, "_stock", None) or (
    modeling_qwen3_moe.apply_rotary_pos_emb
)


def angles(batch: int, tokens: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.randn(batch, tokens, dim)
    return found.cos(), found.sin()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("dim", [2, 6, 128])
@torch.no_grad()
def test_the_same_bits_and_the_same_strides(
    batch: int, shared: bool, tokens: int, dim: int
) -> None:
    cos, sin = angles(1 if shared else batch, tokens, dim)
    for turned in (True, False):  # heads before tokens in memory, or after
        shapes = [(batch, tokens, h, dim) if turned else (batch, h, tokens, dim) for h in (4, 2)]
        q, k = (torch.randn(shape) for shape in shapes)
        if turned:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        expected, found = STOCK(q, k, cos, sin), rotary.replacement(STOCK)(q, k, cos, sin)
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one, other)
            assert tokens == 1 or one.stride() == other.stride()  # else torch does not care


@torch.no_grad()
def test_anything_unusual_goes_the_old_way() -> None:
    asked: list[torch.Tensor] = []

    def stock(q, k, cos, sin, unsqueeze_dim=1):  # type: ignore[no-untyped-def]
        asked.append(q)
        return STOCK(q, k, cos, sin, unsqueeze_dim)

    both = rotary.replacement(stock)
    q, k = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    cos, sin = angles(1, 3, 8)
    both(q, k, cos, sin)
    assert not asked
    both(q.bfloat16(), k.bfloat16(), cos.bfloat16(), sin.bfloat16())
    both(q.transpose(1, 2), k.transpose(1, 2), cos, sin, unsqueeze_dim=2)
    both(q.repeat(1, 1, 1, 2)[..., ::2], k, cos, sin)
    with torch.enable_grad():
        both(q.requires_grad_(), k, cos, sin)[0].sum().backward()
    assert len(asked) == 4
    assert q.grad is not None


def test_another_formula_stays(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(modeling_qwen3_moe, rotary.NAME, STOCK)
    other = getattr(modeling_gpt_oss, rotary.NAME)
    rotary.install(make_model(tmp_path / "usual", "Qwen3Moe"))
    rotary.install(make_model(tmp_path / "other", "GptOss"))
    replaced = getattr(modeling_qwen3_moe, rotary.NAME)
    assert replaced is not STOCK
    assert getattr(modeling_gpt_oss, rotary.NAME) is other
    rotary.install(make_model(tmp_path / "again", "Qwen3Moe"))
    assert getattr(modeling_qwen3_moe, rotary.NAME) is replaced
