"""Write a random Qwen3-MoE checkpoint of any size, in the layout that hubs publish.

    python bench/make_checkpoint.py OUT --layers 8 --experts 128 --hidden 2048 --intermediate 768

One shard a layer, so no more than one layer is ever in memory. The weights are random: good for
memory and speed, meaningless for text and hit rates.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3MoeConfig

HEAD_DIM = 64
SPREAD = 0.02


def make_checkpoint(
    out: Path,
    *,
    layers: int,
    experts: int,
    hidden: int,
    intermediate: int,
    top_k: int = 8,
    vocabulary: int = 2048,
    dtype: torch.dtype = torch.bfloat16,
) -> int:
    """Write the checkpoint into `out`; returns its bytes."""
    out.mkdir(parents=True, exist_ok=True)
    config = Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        moe_intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD_DIM,
        num_key_value_heads=max(1, hidden // HEAD_DIM // 4),
        head_dim=HEAD_DIM,
        num_experts=experts,
        num_experts_per_tok=top_k,
        norm_topk_prob=True,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    config.architectures = ["Qwen3MoeForCausalLM"]
    config.dtype = dtype
    config.save_pretrained(out)
    weight_map, total = {}, 0
    for name, tensors in _shards(config, dtype):
        save_file(tensors, out / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
        total += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def _shards(
    config: Qwen3MoeConfig, dtype: torch.dtype
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """(file name, tensors) for the outer weights, then for each layer."""
    generator = torch.Generator().manual_seed(0)
    hidden, wide = config.hidden_size, config.moe_intermediate_size
    heads, groups = config.num_attention_heads * HEAD_DIM, config.num_key_value_heads * HEAD_DIM

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * SPREAD).to(dtype)

    # Random numbers are slow to make: experts are different windows of one random block.
    block = random(3 * hidden * wide + config.num_experts * config.num_hidden_layers)
    yield (
        "model-outer.safetensors",
        {
            "model.embed_tokens.weight": random(config.vocab_size, hidden) / SPREAD,
            "model.norm.weight": torch.ones(hidden, dtype=dtype),
            "lm_head.weight": random(config.vocab_size, hidden),
        },
    )
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        tensors = {
            f"{prefix}.input_layernorm.weight": torch.ones(hidden, dtype=dtype),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(hidden, dtype=dtype),
            f"{prefix}.self_attn.q_norm.weight": torch.ones(HEAD_DIM, dtype=dtype),
            f"{prefix}.self_attn.k_norm.weight": torch.ones(HEAD_DIM, dtype=dtype),
            f"{prefix}.self_attn.q_proj.weight": random(heads, hidden),
            f"{prefix}.self_attn.k_proj.weight": random(groups, hidden),
            f"{prefix}.self_attn.v_proj.weight": random(groups, hidden),
            f"{prefix}.self_attn.o_proj.weight": random(hidden, heads),
            f"{prefix}.mlp.gate.weight": random(config.num_experts, hidden),
        }
        for expert in range(config.num_experts):
            start = layer * config.num_experts + expert
            window = block[start : start + 3 * hidden * wide]
            parts = window.split(hidden * wide)
            name = f"{prefix}.mlp.experts.{expert}"
            tensors[f"{name}.gate_proj.weight"] = parts[0].view(wide, hidden).clone()
            tensors[f"{name}.up_proj.weight"] = parts[1].view(wide, hidden).clone()
            tensors[f"{name}.down_proj.weight"] = parts[2].view(hidden, wide).clone()
        yield f"model-layer-{layer:03d}.safetensors", tensors


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path)
    for name, default in (
        ("layers", 8),
        ("experts", 128),
        ("hidden", 2048),
        ("intermediate", 768),
        ("top-k", 8),
        ("vocabulary", 2048),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = vars(parser.parse_args())
    total = make_checkpoint(args.pop("out"), **args)
    print(f"{total:,} bytes")


if __name__ == "__main__":
    main()
