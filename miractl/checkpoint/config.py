"""A model's config.json under one name a fact, whatever the family calls it.

Every known name of a fact is read. Two that disagree, or none where one is needed, is an error that
names them; no model class is asked for its default. `null` is the same as absent.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from miractl.checkpoint.regular import refuse_special
from miractl.errors import MiractlError

CONFIG = "config.json"

# Our name: the names in config.json; a dot goes into a nested object.
ALIASES: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "d_model", "dim", "n_embd"),
    "layers": ("num_hidden_layers", "n_layers", "num_layers", "n_layer"),
    "vocab": ("vocab_size",),
    "context": (
        *("max_position_embeddings", "max_seq_len", "n_positions", "model_max_length"),
        *("max_sequence_length", "seq_length"),
    ),
    "heads": ("num_attention_heads", "n_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "attn_config.kv_n_heads"),
    "head_dim": ("head_dim", "kv_channels"),
    "sliding_heads": (
        *("num_sliding_attention_heads", "attention_other_setting.num_attention_heads"),
    ),
    "intermediate": (
        *("intermediate_size", "inter_dim", "ffn_hidden_size", "ffn_config.ffn_hidden_size"),
    ),
    "experts": (
        *("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
        *("ffn_config.moe_num_experts", "experts_per_layer"),
    ),
    "top_k": (
        *("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk"),
        *("moe_top_k", "moe_k", "top_k_experts", "n_activated_experts", "num_selected_experts"),
        "ffn_config.moe_top_k",
    ),
    "moe_intermediate": ("moe_intermediate_size", "moe_inter_dim"),
    "dense_intermediate": ("intermediate_size_mlp", "prefix_dense_intermediate_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "shared_intermediate": (
        *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
        *("share_expert_dim", "shared_intermediate_size"),
    ),
    "latent": ("moe_latent_size",),
    # Which layers have experts, and which attend to what: read by layers.py.
    "dense_first": ("first_k_dense_replace", "num_dense_layers", "n_dense_layers"),
    "sparse_step": ("decoder_sparse_step",),
    "moe_frequency": ("moe_layer_freq",),
    "moe_interleave": ("interleave_moe_layer_step",),
    "moe_period": ("expert_layer_period",),
    "moe_offset": ("expert_layer_offset",),
    "moe_start": ("moe_layer_start_index",),
    "moe_end": ("moe_layer_end_index",),
    "moe_interval": ("moe_layer_interval",),
    "dense_layers": ("mlp_only_layers",),
    "moe_layers": ("moe_layers",),
    "mlp_types": ("mlp_layer_types",),
    "mixer_types": ("layer_types", "layers_block_type"),
    "mixer_pattern": ("hybrid_override_pattern",),
    "mixer_numbers": ("attn_type_list",),
    "full_interval": (
        *("full_attention_interval", "global_attn_every_n_layers", "sliding_window_pattern"),
    ),
    "full_period": ("attn_layer_period",),
    "full_offset": ("attn_layer_offset",),
    "full_layers": ("full_attn_idxs",),
    "full_layers_from_1": ("linear_attn_config.full_attn_layers",),
    "window": ("sliding_window",),
    "chunk": ("attention_chunk_size",),
    # Multi-head latent attention and its indexer.
    "q_lora": ("q_lora_rank",),
    "kv_lora": ("kv_lora_rank",),
    "nope": ("qk_nope_head_dim",),
    "rope": ("qk_rope_head_dim",),
    "v_dim": ("v_head_dim",),
    "index_heads": ("index_n_heads",),
    "index_dim": ("index_head_dim",),
    # Layers that are not attention: state spaces, linear attention, convolutions.
    "ssm_expand": ("mamba_expand", "expand"),
    "ssm_state": ("mamba_d_state", "ssm_state_size"),
    "ssm_conv": ("mamba_d_conv", "conv_kernel"),
    "ssm_rank": ("mamba_dt_rank",),
    "ssm_heads": ("mamba_n_heads", "mamba_num_heads"),
    "ssm_head_dim": ("mamba_d_head", "mamba_head_dim"),
    "ssm_groups": ("mamba_n_groups", "n_groups"),
    "linear_k_heads": ("linear_num_key_heads",),
    "linear_v_heads": ("linear_num_value_heads",),
    "linear_k_dim": ("linear_key_head_dim",),
    "linear_v_dim": ("linear_value_head_dim",),
    "linear_heads": ("linear_num_heads", "linear_attn_config.num_heads"),
    "linear_dim": ("linear_head_dim", "linear_attn_config.head_dim"),
    "linear_conv": ("linear_conv_kernel_dim", "linear_attn_config.short_conv_kernel_size"),
    "conv_length": ("conv_L_cache",),
    # Flags; absent is False, except in ABSENT.
    "attention_bias": ("attention_bias",),
    "use_bias": ("use_bias",),
    "qkv_bias": ("qkv_bias",),
    "head_norm": ("use_qk_norm",),
    "head_bias": ("lm_head_bias",),
    "expert_bias": ("use_expert_bias",),
    "conv_bias": ("conv_bias",),
    "ssm_conv_bias": ("mamba_conv_bias", "use_conv_bias"),
    "ssm_bias": ("mamba_proj_bias",),
    "mlp_bias": ("mlp_bias",),
    "use_window": ("use_sliding_window",),
    "tied": ("tie_word_embeddings", "tie_embedding"),
    "dtype": ("dtype", "torch_dtype"),
    "quantization": ("quantization_config",),
}
# What published checkpoints have whose config has no such key.
ABSENT = {"qkv_bias": True, "use_window": True, "ssm_conv_bias": True}

LARGEST = 2**31 - 1
_OUTER = ("architectures", "dtype", "torch_dtype", "quantization_config", "tie_word_embeddings")


class UnknownFamilyError(MiractlError):
    """A model type without a row in our tables; nothing is known against it."""


class ModelConfig:
    """One config.json. A config with a `text_config` is read as that, the rest filled in."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        text = values.get("text_config")
        self.is_part = isinstance(text, dict) and bool(text)
        if isinstance(text, dict) and text:
            outer = {key: values[key] for key in _OUTER if values.get(key) is not None}
            named = {"model_type": values.get("model_type")}
            values = named | outer | {k: v for k, v in text.items() if v is not None}
        self.values = values

    @classmethod
    def read(cls, folder: Path) -> "ModelConfig":
        """Raises MiractlError for a missing or unreadable config.json."""
        path = folder / CONFIG
        try:
            refuse_special(path)
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise MiractlError(f"{path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise MiractlError(f"{path} is not valid JSON ({error})") from None
        if not isinstance(values, dict):
            raise MiractlError(f"{path} is not a JSON object")
        return cls(path, values)

    def error(self, text: str, hint: str | None = None) -> MiractlError:
        """An error about this file."""
        return MiractlError(f"{self.path}: {text}", hint=hint)

    def unknown_family(self, kind: object, known: str) -> "UnknownFamilyError":
        """A model type that cannot be sized here."""
        text = f"{self.path}: models of type {kind!r} are not known here"
        return UnknownFamilyError(text, hint=f"known: {known}")

    def uneven(self, names: Iterable[str]) -> "UnknownFamilyError | None":
        """A model whose layers have sizes of their own among `names`; None if they do not."""
        layers = self.values.get("per_layer_config")
        own = {key for each in layers.values() for key in each} if isinstance(layers, dict) else ()
        keys = sorted(key for name in names for key in ALIASES[name] if key in own)
        if not keys:
            return None
        return UnknownFamilyError(f"{self.path}: layers differ in {keys[0]} (per_layer_config)")

    def given(self, name: str) -> dict[str, Any]:
        """What each key that is there says about `name`."""
        found = {key: _nested(self.values, key) for key in ALIASES[name]}
        return {key: value for key, value in found.items() if value is not None}

    def value(self, name: str) -> Any:
        """What the config says about `name`, None for nothing. Raises MiractlError for two."""
        found = self.given(name)
        values = list(found.values())
        if any(other != values[0] or type(other) is not type(values[0]) for other in values[1:]):
            raise self.error(f"{_said(found)} disagree")
        return values[0] if values else None

    def optional(self, name: str, least: int = 0) -> int | None:
        """A whole number from `least` on; a list with one entry a layer has to say one number."""
        value = self.value(name)
        if isinstance(value, list | dict) and value:
            each = list(value.values()) if isinstance(value, dict) else value
            if any(other != each[0] for other in each[1:]):
                raise self._unequal(name, each)
            value = each[0]
        if value is None:
            return None
        if type(value) is not int or not least <= value <= LARGEST:
            raise self.error(f"{_said(self.given(name))}, expected a whole number from {least} on")
        return value

    def number(self, name: str, least: int = 1) -> int:
        """As `optional`, but it has to be there."""
        value = self.optional(name, least)
        if value is None:
            raise self.missing(name)
        return value

    def numbers(self, name: str) -> list[int] | None:
        """A list of whole numbers, e.g. layer indices."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, list) or any(type(n) is not int for n in value):
            raise self.error(f"{_said(self.given(name))}, expected a list of whole numbers")
        return value

    def words(self, name: str) -> list[str] | None:
        """A list of words, e.g. one a layer."""
        value = self.value(name)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or any(not isinstance(word, str) for word in value):
            raise self.error(f"{_said(self.given(name))}, expected a list of words")
        return value

    def flag(self, name: str, absent: bool | None = None) -> bool:
        """True or False; where it is absent `absent`, else what ABSENT says, else False."""
        value = self.value(name)
        if value is None:
            return ABSENT.get(name, False) if absent is None else absent
        if not isinstance(value, bool):
            raise self.error(f"{_said(self.given(name))}, expected true or false")
        return value

    def missing(self, name: str) -> MiractlError:
        """The error for a fact that no key states."""
        keys = ALIASES[name]
        absent = f"{keys[0]} is not there"
        if len(keys) > 1:
            absent = f"none of {', '.join(keys)} is there"
        return self.error(f"{absent}, and no default is taken")

    def _unequal(self, name: str, each: list[Any]) -> MiractlError:
        numbers = sorted({n for n in each if type(n) is int})
        what = f"{numbers[0]} to {numbers[-1]}" if numbers else "different values"
        keys = ", ".join(self.given(name))
        return self.error(f"{keys} says {what}: layers with unequal experts are not supported")


def _nested(values: Mapping[str, Any], key: str) -> Any:
    found: Any = values
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _said(found: Mapping[str, Any]) -> str:
    """`a = 1 and b = 2`, each value cut to what a line can hold."""
    return " and ".join(f"{key} = {_short(value)}" for key, value in found.items())


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
