"""The tables of tensors against the model classes of transformers: same names, same shapes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from miractl.checkpoint.blueprint import Role, Tensor
from miractl.checkpoint.config import ModelConfig
from miractl.checkpoint.geometry import geometry_of

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
EXPERTS = MOE | {"num_experts": 4}
ROUTED = MOE | {"n_routed_experts": 4, "n_shared_experts": 2, "n_group": 1, "topk_group": 1}
LATENT = {
    "kv_lora_rank": 12,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
DENSE_1 = {"first_k_dense_replace": 1}
TYPES = {"layer_types": ["linear_attention", "full_attention"] * 2}
SPARSE_3 = {"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "first_k_dense_replace": 1}
MAMBA_2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 3,
}
QWEN = EXPERTS | {"shared_expert_intermediate_size": 20, "decoder_sparse_step": 1}

# model_type: what its config says beyond SMALL. Two rows of a type differ in their flags.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("afmoe", EXPERTS | {"num_dense_layers": 1, "num_shared_experts": 2, "head_dim": 8}),
    ("cohere2_moe", LOCAL | {"num_experts": 4, "num_local_experts": None}),
    ("deepseek_v2", ROUTED | LATENT | DENSE_1),
    ("deepseek_v2", ROUTED | LATENT | DENSE_1 | {"q_lora_rank": None, "attention_bias": True}),
    ("deepseek_v3", ROUTED | LATENT | DENSE_1 | {"attention_bias": True}),
    ("deepseek_v32", ROUTED | LATENT | SPARSE_3 | {"index_n_heads": 3, "index_head_dim": 8}),
    ("dots1", ROUTED | DENSE_1),
    ("ernie4_5_moe", MOE | {"moe_num_experts": 4, "moe_k": 2, "use_bias": False}),
    ("exaone_moe", EXPERTS | SPARSE_3 | {"num_shared_experts": 1}),
    ("flex_olmo", {"num_experts": 4, "num_experts_per_tok": 2}),
    ("glm4_moe", ROUTED | DENSE_1 | {"attention_bias": True, "use_qk_norm": True}),
    ("glm4_moe", ROUTED | DENSE_1 | {"head_dim": 10, "use_qk_norm": False}),
    ("glm4_moe_lite", ROUTED | LATENT | SPARSE_3),
    ("gpt_oss", LOCAL | {"head_dim": 8}),
    ("granitemoe", LOCAL),
    ("granitemoehybrid", LOCAL | TYPES | MAMBA_2 | {"shared_intermediate_size": 20}),
    ("granitemoeshared", LOCAL | {"shared_intermediate_size": 20}),
    (
        "jamba",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "attn_layer_period": 4,
            "attn_layer_offset": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 3,
        },
    ),
    ("jetmoe", LOCAL | {"kv_channels": 8}),
    ("kimi_linear", EXPERTS | LATENT | TYPES | SPARSE_3 | {"linear_num_heads": 2}),
    ("lfm2_moe", EXPERTS | {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1}),
    ("llama4_text", LOCAL | {"interleave_moe_layer_step": 2, "moe_layers": [1, 3]}),
    ("minimax", LOCAL | TYPES),
    ("minimax_m2", LOCAL | {"head_dim": 8}),
    ("mixtral", LOCAL),
    (
        "nemotron_h",
        {
            **ROUTED,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "moe_shared_expert_intermediate_size": 20,
            "mamba_num_heads": 4,
            "n_groups": 2,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "head_dim": 8,
        },
    ),
    ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    ("phimoe", LOCAL | {"attention_bias": True, "lm_head_bias": True}),
    ("qwen2_moe", QWEN | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}),
    ("qwen3_5_moe_text", QWEN | TYPES | DELTA | {"head_dim": 8, "attention_bias": True}),
    ("qwen3_moe", EXPERTS | {"attention_bias": True, "head_dim": 10}),
    ("qwen3_next", QWEN | TYPES | DELTA | {"head_dim": 8}),
    ("qwen3_vl_moe_text", LOCAL | MOE | {"head_dim": 8}),
    ("aria_text", {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 2}),
    ("glm4v_moe_text", ROUTED | DENSE_1 | {"attention_bias": True}),
    ("solar_open", ROUTED | {"head_dim": 8}),
]


def shapes_of_stock(config: Any) -> dict[str, tuple[int, ...]]:
    """Parameters of the stock model without its head, by name below the model."""
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def shapes_of_tables(tensors: tuple[Tensor, ...], prefix: str) -> dict[str, tuple[int, ...]]:
    counted = [t for t in tensors if t.counted and t.role is not Role.EXPERT]
    return {
        name.removeprefix("model."): tensor.shape
        for tensor in counted
        for name in tensor.full_names(prefix)
        if not name.startswith("lm_head.")
    }


@pytest.mark.parametrize(("kind", "extra"), CASES, ids=[kind for kind, _ in CASES])
def test_the_tables_agree_with_the_stock_model(kind: str, extra: dict[str, Any]) -> None:
    config = CONFIG_MAPPING[kind](**SMALL | extra)
    geometry = geometry_of(ModelConfig(Path("config.json"), config.to_dict()))
    ours = shapes_of_tables(geometry.blueprint.tensors, geometry.blueprint.prefix)
    stock = shapes_of_stock(config)
    fused = {name for name in stock if ".experts." in name and "self_attention" not in name}
    fused |= {n for n in stock if kind == "jetmoe" and ".mlp." in n and "_linear." in n}
    assert ours == {name: shape for name, shape in stock.items() if name not in fused}
    routed = sum(torch.Size(stock[name]).numel() for name in fused)
    assert geometry.expert_parameters == routed
    layers = {int(name.split(".")[1]) for name in fused}
    assert set(geometry.moe_layers) == layers
