"""Checkpoints whose weights are codes: what comes out equals a model of the decoded numbers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from miractl.errors import MiractlError
from miractl.runtime.decode import MXFP4_VALUES
from tests.runtime.models import PROMPT, logits, make_model

BLOCK = 20  # divides neither 24 nor 32: the last block is ragged in both directions


def rewrite(folder: Path, tensors: Mapping[str, torch.Tensor], method: dict[str, Any]) -> None:
    """One shard with other tensors, and a config that names their format."""
    for path in folder.glob("model*"):
        path.unlink()
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": method}))


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {
        n: t for path in sorted(folder.glob("*.safetensors")) for n, t in load_file(path).items()
    }


def to_fp8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales and the numbers they stand for, block by block as the definition has it."""
    rows, columns = weight.shape
    grid = (-(-rows // BLOCK), -(-columns // BLOCK))
    scales = torch.rand(grid) + 0.5
    codes, numbers = torch.empty_like(weight, dtype=torch.float8_e4m3fn), torch.empty_like(weight)
    for r in range(grid[0]):
        for c in range(grid[1]):
            at = (slice(r * BLOCK, (r + 1) * BLOCK), slice(c * BLOCK, (c + 1) * BLOCK))
            codes[at] = (weight[at] / scales[r, c]).to(torch.float8_e4m3fn)
            numbers[at] = codes[at].float() * scales[r, c]
    return codes, scales, numbers


def stock_logits(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        result: torch.Tensor = model(PROMPT).logits
    return result


def test_fp8_with_ragged_blocks(tmp_path: Path) -> None:
    coded, plain = tmp_path / "coded", tmp_path / "plain"
    for folder in (coded, plain):
        make_model(folder, "DeepseekV3")
    stored, numbers = {}, {}
    for name, tensor in tensors_of(plain).items():
        stored[name] = numbers[name] = tensor
        if name.endswith("_proj.weight") or "a_proj" in name:
            stored[name], stored[f"{name}_scale_inv"], numbers[name] = to_fp8(tensor)
    assert sum("experts" in name and "scale" in name for name in stored) > 3 * 8 * 3
    rewrite(coded, stored, {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]})
    for path in plain.glob("model*"):
        path.unlink()
    save_file(numbers, plain / "model.safetensors", metadata={"format": "pt"})
    assert (logits(coded) - stock_logits(plain)).abs().max() <= 1e-5


def test_codes_without_scales_are_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "Qwen3Moe")
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    tensors = tensors_of(tmp_path)
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    rewrite(tmp_path, tensors, {"quant_method": "fp8", "weight_block_size": [16, 16]})
    with pytest.raises(MiractlError, match=f"{name} has no scales: {name}_scale_inv is missing"):
        logits(tmp_path)


def test_mxfp4_as_gpt_oss_stores_it(tmp_path: Path) -> None:
    """Codes are [experts, rows, groups, 16] with the low nibble first, rows being the outputs."""
    coded, plain = tmp_path / "coded", tmp_path / "plain"
    torch.manual_seed(1)
    for folder in (coded, plain):
        make_model(folder, "GptOss")  # every projection has 32 or 64 inputs: whole groups
    stored = tensors_of(plain)
    numbers = dict(stored)
    for name in [n for n in stored if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = stored.pop(name).shape
        shape = (experts, outputs, inputs // 32, 16)
        low, high = torch.randint(0, 16, shape), torch.randint(0, 16, shape)
        exponents = torch.randint(120, 126, shape[:3])
        stored[f"{name}_blocks"] = (low + 16 * high).to(torch.uint8)
        stored[f"{name}_scales"] = exponents.to(torch.uint8)
        values = torch.empty(experts, outputs, inputs // 32, 32)
        values[..., 0::2], values[..., 1::2] = MXFP4_VALUES[low], MXFP4_VALUES[high]
        values = values * 2.0 ** (exponents[..., None] - 127)
        numbers[name] = values.view(experts, outputs, inputs).transpose(1, 2).contiguous()
    rewrite(coded, stored, {"quant_method": "mxfp4"})
    for path in plain.glob("model*"):
        path.unlink()
    save_file(numbers, plain / "model.safetensors", metadata={"format": "pt"})
    assert (logits(coded) - stock_logits(plain)).abs().max() <= 1e-5


def test_several_shards_without_an_index(tmp_path: Path) -> None:
    make_model(tmp_path, "Qwen3Moe")
    expected = stock_logits(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert (logits(tmp_path) - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("same", [True, False])
def test_a_tied_head_that_is_stored_too_is_treated_as_the_engine_does(
    tmp_path: Path, same: bool
) -> None:
    make_model(tmp_path, "GraniteMoe")
    tensors = tensors_of(tmp_path)
    assert "lm_head.weight" not in tensors
    embeddings = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = embeddings.clone() if same else embeddings + 0.1
    for path in tmp_path.glob("model*"):
        path.unlink()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert (logits(tmp_path) - stock_logits(tmp_path)).abs().max() <= 1e-5
