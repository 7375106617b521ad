"""Tiny random models of several families, made by the tests, in the layouts that hubs publish."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from miractl.parameters import PARAMETERS
from miractl.runtime.engine import Engine, EngineOptions

PROMPT = torch.tensor([[5, 17, 80, 3, 44, 9, 61, 30]])
BASE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # far enough from zero that a wrong expert shows
}
SMALL = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3Moe": SMALL | {"num_experts": 8, "head_dim": 8},
    "Qwen2Moe": SMALL
    | {"num_experts": 6, "shared_expert_intermediate_size": 24}
    | {"decoder_sparse_step": 2, "num_hidden_layers": 4},  # MoE in layers 1 and 3
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Olmoe": {"num_experts": 8, "num_experts_per_tok": 3},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    | {"intermediate_size": 64}
    | {"layer_types": ["sliding_attention", "full_attention", "full_attention"]},
    "GraniteMoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": True},
    "DeepseekV3": SMALL
    | LATENT
    | {"n_routed_experts": 8, "n_group": 2, "topk_group": 1}
    | {"first_k_dense_replace": 1, "num_hidden_layers": 4},
}


def make_model(
    folder: Path, family: str, fused: bool = False, **changes: Any
) -> transformers.PreTrainedModel:
    """Save a random float32 model of the family into `folder`; returns the stock model.

    Published layouts have one tensor an expert and projection; `fused` ones the model's own.
    """
    torch.manual_seed(0)
    settings = {
        **BASE,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": None,
        **FAMILIES[family],
        **changes,
    }
    config = getattr(transformers, f"{family}Config")(**settings)
    model_class = getattr(transformers, f"{family}ForCausalLM")
    config.architectures = [model_class.__name__]
    model: transformers.PreTrainedModel = model_class(config).eval()
    model.save_pretrained(folder, save_original_format=not fused, max_shard_size="60KB")
    return model


def options(folder: Path, expert_memory: str | None, **parameters: Any) -> EngineOptions:
    """Engine options with the default parameters."""
    values = {name: parameter.default for name, parameter in PARAMETERS.items()}
    return EngineOptions(
        model_path=folder,
        model_id="tiny",
        parameters={**values, **parameters},
        device="cpu",
        expert_memory=expert_memory,
        with_tokenizer=False,
    )


def load(folder: Path, slots: int, **parameters: Any) -> Engine:
    """An engine with exactly `slots` slots."""
    from miractl.runtime.arena import expert_nbytes
    from miractl.runtime.outline import read_outline

    outline = read_outline(folder, parameters.get("expert_layer_path"))
    each = expert_nbytes(outline.shapes, torch.float32)
    return Engine.load(options(folder, f"{slots * each}B", **parameters))


def logits(folder: Path, dtype: str = "float32") -> torch.Tensor:
    """What an engine makes of PROMPT, with half of the experts in slots."""
    engine = Engine.load(dataclasses.replace(options(folder, "50%"), dtype=dtype))
    try:
        with torch.no_grad():
            result: torch.Tensor = engine.model(PROMPT).logits
    finally:
        engine.close()
    return result


def rename_tensors(folder: Path, rename: dict[str, str | None]) -> None:
    """Rename tensors of a single-file checkpoint; None removes one."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for old, new in rename.items():
        tensor = tensors.pop(old)
        if new is not None:
            tensors[new] = tensor
    save_file(tensors, path, metadata={"format": "pt"})


def weight_map(folder: Path) -> dict[str, str]:
    """The index of a sharded checkpoint."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    result: dict[str, str] = index["weight_map"]
    return result
