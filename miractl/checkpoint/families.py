"""The families of models whose shape is known: which blocks each is made of.

A family is a row of FAMILIES. What is not here is refused by name, not guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from miractl.checkpoint import blocks as b
from miractl.checkpoint import mixers as m
from miractl.checkpoint.layers import CHUNKED, FULL, LINEAR, SLIDING
from miractl.checkpoint.mixers import Mixer

_SIZES = {"moe": "moe_intermediate", "dense": "intermediate"}
_COUNTED = {"shared": "shared_experts*moe_intermediate"}  # so many shared experts of that size
_NAMED = {"shared": "shared_intermediate"}  # the size is stated


@dataclass(frozen=True)
class Family:
    """One row: blocks by place. `sizes` are the family's own meanings of dimensions."""

    mixers: Mapping[str, Mixer]  # by type of layer; a single one serves all types
    router: str
    sizes: Mapping[str, str] = field(default_factory=lambda: _SIZES)
    shared: str = ""
    expert: str = b.GATED
    dense: str = b.DENSE
    norms: str = b.NORMS
    outer: str = b.OUTER
    at: str = "mlp"  # where a layer keeps its feed-forward part
    prefix: str = "model.layers"
    needs: str = ""  # without this fact it is unknown which layers have experts
    pattern: tuple[str, ...] = ()  # types of layers in turn, where the config has no list
    other_mixer: str = SLIDING  # the type of layers that do not attend to everything
    absent: Mapping[str, bool] = field(default_factory=dict)  # flags where the config has none


def _one(mixer: Mixer) -> dict[str, Mixer]:
    return {FULL: mixer}


_MOE_IS_INTERMEDIATE = _SIZES | {"moe": "intermediate"}
_MIXTRAL = Family(_one(m.GQA), b.GATE, _MOE_IS_INTERMEDIATE)
_QWEN2 = Family(
    _one(m.GQA_QKV_BIAS), b.GATE, _SIZES | _NAMED, shared=b.SHARED_GATED, needs="sparse_step"
)
_QWEN3 = Family(_one(m.GQA_NORM), b.GATE, needs="sparse_step")
_DEEPSEEK = Family(
    _one(m.MLA), b.GATE_CORRECTED, _SIZES | _COUNTED, shared=b.SHARED, needs="dense_first"
)
_DEEPSEEK_1 = replace(_DEEPSEEK, mixers=_one(m.GQA), router=b.GATE)
_DEEPSEEK_2 = replace(_DEEPSEEK, router=b.GATE)
_GLM = replace(_DEEPSEEK, mixers=_one(m.GQA_GLM))
_GPT_OSS = Family(
    _one(m.GQA_SINKS),
    b.ROUTER_BIAS,
    _MOE_IS_INTERMEDIATE,
    expert=b.GATED_BIAS,
    pattern=(SLIDING, FULL),
)
_GRANITE = Family(_one(m.GQA), b.ROUTER, _MOE_IS_INTERMEDIATE | _NAMED, at="block_sparse_moe")
_GRANITE_SHARED = replace(_GRANITE, shared=b.SHARED_GRANITE)
_PHI = replace(_MIXTRAL, router=b.ROUTER, norms=b.NORMS_BIAS, outer=b.OUTER + b.OUTER_BIAS)
_QWEN3_NEXT = Family(
    {FULL: m.GQA_DOUBLE_Q, LINEAR: m.DELTA_NEXT},
    b.GATE,
    _SIZES | _NAMED,
    shared=b.SHARED_GATED,
    needs="sparse_step",
    other_mixer=LINEAR,
)

# By model_type.
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "afmoe": Family(
            _one(m.GQA_GATE),
            b.GATE_AFMOE,
            _SIZES | _COUNTED,
            shared=b.SHARED,
            norms=b.NORMS_SANDWICH,
            needs="dense_first",
        ),
        "aria_text": Family(
            _one(m.GQA),
            b.ROUTER,
            {"moe": "intermediate", "shared": "shared_experts*intermediate"},
            shared=b.SHARED,
        ),
        "cohere2_moe": Family(
            _one(m.GQA),
            b.GATE,
            {
                "moe": "intermediate",
                "dense": "dense_intermediate",
                "shared": "shared_experts*intermediate",
            },
            shared=b.SHARED,
            norms=b.NORM_ONE,
            needs="mlp_types",
        ),
        "dbrx": Family(
            _one(m.GQA_DBRX),
            b.ROUTER_LAYER,
            _MOE_IS_INTERMEDIATE,
            norms=b.NORMS_DBRX,
            outer=b.OUTER_DBRX,
            at="ffn",
            prefix="transformer.blocks",
        ),
        "deepseek": _DEEPSEEK_1,
        "deepseek_v2": _DEEPSEEK_2,
        "deepseek_v3": _DEEPSEEK,
        "deepseek_v32": replace(_DEEPSEEK, mixers=_one(m.MLA_INDEXED)),
        "dots1": replace(_DEEPSEEK, mixers=_one(m.GQA_NORM)),
        "ernie4_5_moe": replace(
            _DEEPSEEK, mixers=_one(m.GQA_ERNIE), router=b.GATE_ERNIE, needs="moe_start"
        ),
        "exaone_moe": replace(_DEEPSEEK, mixers=_one(m.GQA_NORM)),
        "flex_olmo": replace(_MIXTRAL, mixers=_one(m.GQA_WIDE_NORM), norms=b.NORMS_AFTER),
        "glm4_moe": _GLM,
        "glm4_moe_lite": replace(_DEEPSEEK, needs="mlp_types"),
        "glm4v_moe_text": _GLM,
        "gpt_oss": _GPT_OSS,
        "granitemoe": _GRANITE,
        "granitemoehybrid": replace(
            _GRANITE_SHARED, mixers={FULL: m.GQA, LINEAR: m.MAMBA_2}, other_mixer=LINEAR
        ),
        "granitemoeshared": _GRANITE_SHARED,
        "grinmoe": _PHI,
        "jamba": Family(
            {FULL: m.GQA, LINEAR: m.MAMBA},
            b.ROUTER,
            _MOE_IS_INTERMEDIATE,
            norms=b.NORMS_JAMBA,
            outer=b.OUTER_JAMBA,
            at="feed_forward",
            needs="moe_period",
            other_mixer=LINEAR,
        ),
        "jetmoe": Family(_one(m.MOA), b.JETMOE, _MOE_IS_INTERMEDIATE),
        "kimi_linear": replace(_DEEPSEEK, mixers={FULL: m.MLA, LINEAR: m.KDA}, other_mixer=LINEAR),
        "kimi_k2": _DEEPSEEK,
        "lfm2_moe": Family(
            {FULL: m.GQA_LFM2, "conv": m.SHORT_CONV},
            b.GATE_LFM2,
            dense=b.DENSE_LFM2,
            norms=b.NORMS_LFM2,
            outer=b.OUTER_LFM2,
            at="feed_forward",
            needs="dense_first",
            other_mixer="conv",
        ),
        "llama4_text": Family(
            _one(m.GQA),
            b.ROUTER,
            {"moe": "intermediate", "dense": "dense_intermediate", "shared": "intermediate"},
            shared=b.SHARED_ONE,
            at="feed_forward",
            needs="moe_interleave",
            pattern=(CHUNKED, CHUNKED, CHUNKED, FULL),
        ),
        "minimax": Family(
            {FULL: m.GQA, LINEAR: m.LIGHTNING}, b.GATE, _MOE_IS_INTERMEDIATE, other_mixer=LINEAR
        ),
        "minimax_m2": replace(_MIXTRAL, mixers=_one(m.GQA_WIDE_NORM), router=b.GATE_M2),
        "mixtral": _MIXTRAL,
        "nemotron_h": Family(
            {FULL: m.GQA_NEMOTRON, LINEAR: m.MAMBA_2_NEMOTRON, "moe": Mixer(""), "mlp": Mixer("")},
            b.GATE_LATENT,
            _SIZES | _NAMED,
            shared=b.SHARED_PLAIN,
            expert=b.PLAIN_LATENT,
            dense=b.DENSE_PLAIN,
            norms=b.NORM_NEMOTRON,
            outer=b.OUTER_NEMOTRON,
            at="mixer",
            needs="mixer_types",
        ),
        "olmoe": replace(_MIXTRAL, mixers=_one(m.GQA_WIDE_NORM)),
        "phimoe": _PHI,
        "qwen2_moe": _QWEN2,
        "qwen3_5_moe_text": replace(
            _QWEN3_NEXT, mixers={FULL: m.GQA_DOUBLE_Q, LINEAR: m.DELTA_35}, needs=""
        ),
        "qwen3_moe": _QWEN3,
        "qwen3_next": _QWEN3_NEXT,
        "qwen3_vl_moe_text": _QWEN3,
        "solar_open": replace(_DEEPSEEK, mixers=_one(m.GQA), needs=""),
        "step3p5": Family(
            {FULL: m.GQA_STEP, SLIDING: m.GQA_STEP_SLIDING},
            b.GATE_CORRECTED,
            _SIZES | _NAMED,
            shared=b.SHARED_ALWAYS,
            needs="mlp_types",
        ),
        "xverse": Family(
            _one(m.GQA),
            b.ROUTER,
            {
                "moe": "intermediate",
                "shared": "shared_experts*intermediate",
                "kv_heads": "heads",
            },
            shared=b.SHARED,
        ),
    }
)

# Formats from before transformers: known by their keys, because they have no model_type.
ORIGINALS: Mapping[str, tuple[frozenset[str], Family]] = MappingProxyType(
    {
        "deepseek_v3": (
            frozenset(("n_activated_experts", "moe_inter_dim", "score_func")),
            replace(_DEEPSEEK, absent={"tied": False}),
        ),
        "deepseek_v2": (
            frozenset(("n_activated_experts", "moe_inter_dim")),
            replace(_DEEPSEEK_2, absent={"tied": False}),
        ),
        "gpt_oss": (
            frozenset(("experts_per_token", "swiglu_limit")),
            replace(_GPT_OSS, absent={"tied": False, "attention_bias": True}),
        ),
    }
)

# What is known and cannot be described: the reason, by model_type and by a key that has a value.
REFUSED_TYPES = {
    "qwen3_omni_moe": "holds two Mixture-of-Experts models, a thinker and a talker",
}
REFUSED_KEYS = {
    "is_encoder_decoder": "is an encoder-decoder model; only decoders are supported",
    "zero_expert_num": "has zero-experts, which are no weights but can be chosen",
    "intermediate_size_residual": "has a residual expert beside the routed ones",
    "use_attn_moe": "has experts in its attention beside those of the stock model",
    "attn_experts": "has experts in its attention beside those of the stock model",
    "num_moe_contract_layers": "contracts layers, which the stock model does not",
}
