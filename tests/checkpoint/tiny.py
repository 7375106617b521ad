"""A tiny Mixtral checkpoint in the layout of model hubs, to be broken by tests."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from miractl.checkpoint.shards import INDEX

HIDDEN, INNER, LAYERS, EXPERTS, VOCAB = 8, 6, 3, 4, 10
CONFIG: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
EXPERT_BYTES = 2 * 3 * HIDDEN * INNER

Tensors = dict[str, npt.NDArray[np.float16]]


def tensors() -> Tensors:
    """All tensors by name; the embedding is all ones."""
    half = HIDDEN // 2
    found = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    found["lm_head.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        found[f"{at}.input_layernorm.weight"] = (HIDDEN,)
        found[f"{at}.post_attention_layernorm.weight"] = (HIDDEN,)
        found[f"{at}.self_attn.q_proj.weight"] = (HIDDEN, HIDDEN)
        found[f"{at}.self_attn.k_proj.weight"] = (half, HIDDEN)
        found[f"{at}.self_attn.v_proj.weight"] = (half, HIDDEN)
        found[f"{at}.self_attn.o_proj.weight"] = (HIDDEN, HIDDEN)
        found[f"{at}.block_sparse_moe.gate.weight"] = (EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            one = f"{at}.block_sparse_moe.experts.{expert}"
            found[f"{one}.w1.weight"] = (INNER, HIDDEN)
            found[f"{one}.w3.weight"] = (INNER, HIDDEN)
            found[f"{one}.w2.weight"] = (HIDDEN, INNER)
    return {name: np.ones(shape, np.float16) for name, shape in found.items()}


def write(
    folder: Path, held: Tensors, config: Mapping[str, Any] | None = None, index: bool = True
) -> Path:
    """Two shards, every other tensor in each, with or without an index."""
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    weight_map: dict[str, str] = {}
    for number in (1, 2):
        name = f"model-0000{number}-of-00002.safetensors"
        own = {key: held[key] for key in sorted(held)[number - 1 :: 2]}
        save_file(own, folder / name)
        weight_map |= dict.fromkeys(own, name)
    if index:
        write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: Mapping[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
