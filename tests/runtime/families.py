"""Every family that the experts interface covers, as a tiny random model; and those that it misses.

`python -m tests.runtime.families` writes docs/models.md from these tables; test_families.py proves
each row.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# Sizes under every name that some family has for them; each config takes those it knows.
SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
    "shared_intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "moe_num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_layer_start_index": 1,
    "num_dense_layers": 1,
    "decoder_sparse_step": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "mamba_n_groups": 1,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "n_groups": 1,
    "ssm_state_size": 16,
    "chunk_size": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
FULL = ["full_attention"] * 4
HALF_LINEAR = {"layer_types": ["linear_attention", "full_attention"] * 2}
MLA = {"num_key_value_heads": 4}
SPARSE = MLA | {"index_topk": 16, "index_head_dim": 32, "index_n_heads": 2}
# model type: what its config needs beyond SMALL.
FAMILIES: dict[str, dict[str, Any]] = {
    "afmoe": {},
    "aria_text": {},
    "axk1": SPARSE,
    "axk2": SPARSE,
    "bailing_hybrid": MLA | HALF_LINEAR,
    "beam": {},
    "cohere2_moe": {},
    "deepseek_v2": MLA,
    "deepseek_v3": MLA,
    "deepseek_v32": SPARSE,
    "deepseek_v4": {},
    "dots1": {},
    "ernie4_5_moe": {"moe_layer_end_index": 3},
    "exaone_moe": {},
    "flex_olmo": {},
    "flint": {},
    "glm4_moe": {},
    "glm4_moe_lite": MLA,
    "glm_moe_dsa": SPARSE,
    "gpt_oss": {"layer_types": FULL},
    "granitemoe": {},
    "granitemoehybrid": {"layer_types": ["attention"] * 4},
    "granitemoeshared": {},
    "granitemoe_swa": {},
    "hunyuan_v1_moe": {
        "moe_topk": [2] * 4,
        "num_shared_expert": [1] * 4,
        "moe_intermediate_size": [48] * 4,
    },
    "hy_v3": {},
    "hy_v4": {},
    "inkling_text": {},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_dt_rank": 8,
        "expert_layer_period": 1,
        "expert_layer_offset": 0,
        "use_mamba_kernels": False,
    },
    "kimi_linear": MLA | HALF_LINEAR | {"linear_attn_config": {"head_dim": 16, "num_heads": 4}},
    "kolibri1": {},
    "laguna": {},
    "lara_mini": {},
    "lfm2_moe": {"layer_types": FULL},
    "llama4_text": {"intermediate_size_mlp": 96, "interleave_moe_layer_step": 2}
    | {"num_experts_per_tok": 1, "layer_types": FULL, "moe_layers": [1, 3]},
    "mellum": {},
    "mimo_v2_flash": {},
    "minimax": {"layer_types": FULL},
    "minimax_m2": {"rotary_dim": 16},
    "minimax_m3_vl_text": {},
    "mixtral": {},
    "nemotron_h": {"layers_block_type": ["moe", "attention", "moe", "moe"]},
    "olmoe": {},
    "phimoe": {},
    "qwen2_moe": {},
    "qwen3_5_moe_text": {},
    "qwen3_moe": {},
    "qwen3_next": HALF_LINEAR,
    "solar_open": {},
    "zaya": {"num_experts_per_tok": 1},
}
# model type: (its class, why its experts cannot be managed)
EXCLUDED = {
    "doge": ("DogeForCausalLM", "experts are rows of an embedding, not projections"),
    "jetmoe": ("JetMoeForCausalLM", "experts in attention too, in a class of their own"),
    "longcat_flash": ("LongcatFlashForCausalLM", "some experts are identities (zero experts)"),
    "nllb-moe": ("NllbMoeForConditionalGeneration", "an encoder-decoder, one module an expert"),
    "switch_transformers": (
        "SwitchTransformersForConditionalGeneration",
        "an encoder-decoder, one module an expert",
    ),
}


def small_config(model_type: str) -> PreTrainedConfig:
    """A tiny config of the family."""
    config_class = CONFIG_MAPPING[model_type]
    known = config_class()
    settings = {name: value for name, value in SMALL.items() if hasattr(known, name)}
    config: PreTrainedConfig = config_class(**settings | FAMILIES.get(model_type, {}))
    return config


def make_family(folder: Path, model_type: str, *, fused: bool, tied: bool) -> PreTrainedModel:
    """Save a random float32 model into `folder`; returns it with the stock eager kernel.

    Raises KeyError for a type that this transformers does not know.
    """
    config = small_config(model_type)
    config.tie_word_embeddings = tied
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(folder, save_original_format=not fused, max_shard_size="200KB")
    stock: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return stock


def page() -> str:
    """docs/models.md."""
    exact = "\n".join(f"| `{name}` |" for name in FAMILIES)
    excluded = "\n".join(
        f"| `{name}` | {why} | `models/{name.removesuffix('_text').replace('-', '_')}` |"
        for name, (_, why) in EXCLUDED.items()
    )
    return f"""\
# Models

Families whose experts miractl manages, by `model_type` in config.json. Each is proved by the test
suite on a tiny random model, with one tensor an expert as hubs publish it and with fused tensors:
logits within 1e-5 of stock transformers in float32, 32 greedy tokens equal, with as many slots as
one layer has experts and with one slot more than top-k, head tied and untied. Tested with
transformers {transformers.__version__}.

| {len(FAMILIES)} families, exact |
|---|
{exact}

Weights may be stored as bf16, fp16 or fp32, as FP8 with block scales (DeepSeek-V3's format, ragged
last blocks included) and as MXFP4 (gpt-oss). GPTQ, AWQ and other formats are refused by name.

Not managed, and refused in one line:

| model type | why | upstream |
|---|---|---|
{excluded}
"""


if __name__ == "__main__":
    Path("docs/models.md").write_text(page())
