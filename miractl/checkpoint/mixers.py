"""What layers mix tokens with, attention and its replacements: tables like those of blocks.py."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mixer:
    """What a layer mixes tokens with; `kv`: elements that it keeps for each token."""

    tensors: str
    kv: str = "0"


_KV = "kv_heads*head_dim+kv_heads*head_dim"
_QKVO = """
self_attn.q_proj.weight  heads*head_dim hidden
self_attn.k_proj.weight  kv_heads*head_dim hidden
self_attn.v_proj.weight  kv_heads*head_dim hidden
self_attn.o_proj.weight  hidden heads*head_dim
"""
_QKV_BIAS = """
self_attn.q_proj.bias  heads*head_dim     ? attention_bias
self_attn.k_proj.bias  kv_heads*head_dim  ? attention_bias
self_attn.v_proj.bias  kv_heads*head_dim  ? attention_bias
"""
_BIASES = (
    _QKV_BIAS
    + """
self_attn.o_proj.bias  hidden  ? attention_bias
"""
)
_HEAD_NORM = """
self_attn.q_norm.weight  head_dim
self_attn.k_norm.weight  head_dim
"""
_WIDE_NORM = """
self_attn.q_norm.weight  heads*head_dim
self_attn.k_norm.weight  kv_heads*head_dim
"""
_GATE = """
self_attn.gate_proj.weight  heads*head_dim hidden
"""
_SINKS = """
self_attn.sinks  heads
"""
_STEP = """
self_attn.g_proj.weight  heads hidden
"""
_DOUBLE_Q = (_QKVO + _BIASES).replace("q_proj.weight  heads", "q_proj.weight  2*heads")
_DOUBLE_Q = _DOUBLE_Q.replace("q_proj.bias  heads", "q_proj.bias  2*heads")

GQA = Mixer(_QKVO + _BIASES, _KV)
GQA_QKV_BIAS = Mixer(_QKVO + _QKV_BIAS.replace("attention_bias", "qkv_bias"), _KV)
GQA_NORM = Mixer(_QKVO + _BIASES + _HEAD_NORM, _KV)
GQA_WIDE_NORM = Mixer(_QKVO + _BIASES + _WIDE_NORM, _KV)
GQA_GATE = Mixer(_QKVO + _HEAD_NORM + _GATE, _KV)
GQA_DOUBLE_Q = Mixer(_DOUBLE_Q + _HEAD_NORM, _KV)
GQA_SINKS = Mixer(_QKVO + _BIASES + _SINKS, _KV)
GQA_ERNIE = Mixer((_QKVO + _BIASES).replace("attention_bias", "use_bias"), _KV)
GQA_GLM = Mixer(_QKVO + _QKV_BIAS + _HEAD_NORM.replace("head_dim", "head_dim  ? head_norm"), _KV)
GQA_STEP = Mixer(_QKVO + _HEAD_NORM + _STEP, _KV)
GQA_STEP_SLIDING = Mixer(
    GQA_STEP.tensors.replace(" heads", " sliding_heads"),
    _KV,
)
GQA_LFM2 = Mixer(
    _QKVO.replace("o_proj", "out_proj")
    + _HEAD_NORM.replace("q_norm", "q_layernorm").replace("k_norm", "k_layernorm"),
    _KV,
)
GQA_DBRX = Mixer(
    """
norm_attn_norm.attn.Wqkv.weight      heads*head_dim+2*kv_heads*head_dim hidden
norm_attn_norm.attn.out_proj.weight  hidden heads*head_dim
""",
    _KV,
)
GQA_NEMOTRON = Mixer(_QKVO.replace("self_attn.", "mixer."), _KV)
# Attention whose queries and outputs are experts too.
MOA = Mixer(
    """
self_attention.kv_proj.weight                2*kv_heads*head_dim hidden
self_attention.experts.bias                  hidden
self_attention.experts.router.layer.weight   experts hidden
self_attention.experts.input_linear.weight   experts kv_heads*head_dim hidden
self_attention.experts.output_linear.weight  experts hidden kv_heads*head_dim
""",
    _KV,
)

_MLA = """
self_attn.q_proj.weight              heads*nope+heads*rope hidden   ? !q_lora
self_attn.q_a_proj.weight            q_lora hidden                  ? q_lora
self_attn.q_a_proj.bias              q_lora                         ? q_lora&attention_bias
self_attn.q_a_layernorm.weight       q_lora                         ? q_lora
self_attn.q_b_proj.weight            heads*nope+heads*rope q_lora   ? q_lora
self_attn.kv_a_proj_with_mqa.weight  kv_lora+rope hidden
self_attn.kv_a_proj_with_mqa.bias    kv_lora+rope                   ? attention_bias
self_attn.kv_a_layernorm.weight      kv_lora
self_attn.kv_b_proj.weight           heads*nope+heads*v_dim kv_lora
self_attn.o_proj.weight              hidden heads*v_dim
self_attn.o_proj.bias                hidden                         ? attention_bias
"""
MLA = Mixer(_MLA, "kv_lora+rope")
MLA_INDEXED = Mixer(
    _MLA
    + """
self_attn.indexer.wq_b.weight          index_heads*index_dim q_lora
self_attn.indexer.wk.weight            index_dim hidden
self_attn.indexer.k_norm.weight        index_dim
self_attn.indexer.k_norm.bias          index_dim
self_attn.indexer.weights_proj.weight  index_heads hidden
""",
    "kv_lora+rope+index_dim",
)

MAMBA = Mixer(
    """
mamba.A_log               ssm_expand*hidden ssm_state
mamba.D                   ssm_expand*hidden
mamba.conv1d.weight       ssm_expand*hidden 1 ssm_conv
mamba.conv1d.bias         ssm_expand*hidden  ? ssm_conv_bias
mamba.in_proj.weight      2*ssm_expand*hidden hidden
mamba.in_proj.bias        2*ssm_expand*hidden  ? ssm_bias
mamba.x_proj.weight       ssm_rank+2*ssm_state ssm_expand*hidden
mamba.dt_proj.weight      ssm_expand*hidden ssm_rank
mamba.dt_proj.bias        ssm_expand*hidden
mamba.out_proj.weight     hidden ssm_expand*hidden
mamba.out_proj.bias       hidden  ? ssm_bias
mamba.dt_layernorm.weight  ssm_rank
mamba.b_layernorm.weight   ssm_state
mamba.c_layernorm.weight   ssm_state
"""
)
_INNER, _GROUPS = "ssm_heads*ssm_head_dim", "2*ssm_groups*ssm_state"
MAMBA_2 = Mixer(
    f"""
mamba.dt_bias          ssm_heads
mamba.A_log            ssm_heads
mamba.D                ssm_heads
mamba.conv1d.weight    {_INNER}+{_GROUPS} 1 ssm_conv
mamba.conv1d.bias      {_INNER}+{_GROUPS}  ? ssm_conv_bias
mamba.in_proj.weight   2*{_INNER}+{_GROUPS}+ssm_heads hidden
mamba.in_proj.bias     2*{_INNER}+{_GROUPS}+ssm_heads  ? ssm_bias
mamba.norm.weight      {_INNER}
mamba.out_proj.weight  hidden {_INNER}
mamba.out_proj.bias    hidden  ? ssm_bias
"""
)
MAMBA_2_NEMOTRON = Mixer(
    MAMBA_2.tensors.replace("mamba.", "mixer.").replace("ssm_bias", "use_bias")
)
_KEYS, _VALUES = "linear_k_heads*linear_k_dim", "linear_v_heads*linear_v_dim"
_DELTA = f"""
linear_attn.dt_bias          linear_v_heads
linear_attn.A_log            linear_v_heads
linear_attn.conv1d.weight    2*{_KEYS}+{_VALUES} 1 linear_conv
linear_attn.norm.weight      linear_v_dim
linear_attn.out_proj.weight  hidden {_VALUES}
"""
DELTA_NEXT = Mixer(
    _DELTA
    + f"""
linear_attn.in_proj_qkvz.weight  2*{_KEYS}+2*{_VALUES} hidden
linear_attn.in_proj_ba.weight    2*linear_v_heads hidden
"""
)
DELTA_35 = Mixer(
    _DELTA
    + f"""
linear_attn.in_proj_qkv.weight  2*{_KEYS}+{_VALUES} hidden
linear_attn.in_proj_z.weight    {_VALUES} hidden
linear_attn.in_proj_b.weight    linear_v_heads hidden
linear_attn.in_proj_a.weight    linear_v_heads hidden
"""
)
_KDA = "linear_heads*linear_dim"
KDA = Mixer(
    f"""
self_attn.q_proj.weight                {_KDA} hidden
self_attn.k_proj.weight                {_KDA} hidden
self_attn.v_proj.weight                {_KDA} hidden
self_attn.conv1d.weight                3*{_KDA} 1 linear_conv
self_attn.forget_gate.dt_bias          {_KDA}
self_attn.forget_gate.A_log            1 1 linear_heads 1
self_attn.forget_gate.f_a_proj.weight  linear_dim hidden
self_attn.forget_gate.f_b_proj.weight  {_KDA} linear_dim
self_attn.b_proj.weight                linear_heads hidden
self_attn.g_a_proj.weight              linear_dim hidden
self_attn.g_b_proj.weight              {_KDA} linear_dim
self_attn.o_norm.weight                linear_dim
self_attn.o_proj.weight                hidden {_KDA}
"""
)
LIGHTNING = Mixer(
    """
self_attn.norm.weight         heads*head_dim
self_attn.qkv_proj.weight     3*heads*head_dim hidden
self_attn.out_proj.weight     hidden heads*head_dim
self_attn.output_gate.weight  heads*head_dim hidden
"""
)
SHORT_CONV = Mixer(
    """
conv.conv.weight      hidden 1 conv_length
conv.conv.bias        hidden  ? conv_bias
conv.in_proj.weight   3*hidden hidden
conv.in_proj.bias     3*hidden  ? conv_bias
conv.out_proj.weight  hidden hidden
conv.out_proj.bias    hidden  ? conv_bias
"""
)
