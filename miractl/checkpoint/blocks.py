"""The building blocks of layers as tables: the tensors of each, with shapes in named dimensions.

One tensor a line: its name below the layer, then a term for each axis. A term is a sum of products
of dimensions, which the config gives. `? flag` at the end: only where the config has it
(`? !flag`: where not). `~` at the start: stored with the model but not counted as a parameter.
Names are those of transformers.
"""

# Around the layers.
OUTER = """
model.embed_tokens.weight  vocab hidden
model.norm.weight          hidden
lm_head.weight             vocab hidden  ? untied
"""
OUTER_BIAS = """
model.norm.bias  hidden
lm_head.bias     vocab  ? head_bias
"""
OUTER_JAMBA = OUTER.replace("model.norm.", "model.final_layernorm.")
OUTER_LFM2 = OUTER.replace("model.norm.", "model.embedding_norm.")
OUTER_NEMOTRON = OUTER.replace("embed_tokens", "embeddings").replace("model.norm.", "model.norm_f.")
OUTER_DBRX = """
transformer.wte.weight     vocab hidden
transformer.norm_f.weight  hidden
lm_head.weight             vocab hidden  ? untied
"""

# Norms of a layer.
NORMS = """
input_layernorm.weight           hidden
post_attention_layernorm.weight  hidden
"""
NORMS_BIAS = NORMS + NORMS.replace(".weight", ".bias")
NORM_ONE = """
input_layernorm.weight  hidden
"""
NORMS_SANDWICH = (
    NORMS
    + """
pre_mlp_layernorm.weight   hidden
post_mlp_layernorm.weight  hidden
"""
)
NORMS_AFTER = """
post_attention_layernorm.weight    hidden
post_feedforward_layernorm.weight  hidden
"""
NORMS_JAMBA = NORMS.replace("post_attention_layernorm", "pre_ff_layernorm")
NORMS_LFM2 = """
operator_norm.weight  hidden
ffn_norm.weight       hidden
"""
NORM_NEMOTRON = """
norm.weight  hidden
"""
NORMS_DBRX = """
norm_attn_norm.norm_1.weight  hidden
norm_attn_norm.norm_2.weight  hidden
"""

# A layer without experts; `at` is where the layer keeps its feed-forward part.
DENSE = """
{at}.gate_proj.weight  dense hidden
{at}.up_proj.weight    dense hidden
{at}.down_proj.weight  hidden dense
"""
DENSE_LFM2 = """
{at}.w1.weight  dense hidden
{at}.w3.weight  dense hidden
{at}.w2.weight  hidden dense
"""
DENSE_PLAIN = """
{at}.up_proj.weight    dense hidden
{at}.up_proj.bias      dense   ? mlp_bias
{at}.down_proj.weight  hidden dense
{at}.down_proj.bias    hidden  ? mlp_bias
"""

# What a layer with experts has beside them.
GATE = """
{at}.gate.weight  experts hidden
"""
GATE_CORRECTED = (
    GATE
    + """
~{at}.gate.e_score_correction_bias  experts
"""
)
GATE_M2 = (
    GATE
    + """
~{at}.e_score_correction_bias  experts
"""
)
GATE_ERNIE = (
    GATE
    + """
{at}.gate.moe_statics.e_score_correction_bias  1 experts
"""
)
GATE_LFM2 = (
    GATE
    + """
~{at}.expert_bias  experts  ? expert_bias
"""
)
GATE_LATENT = (
    GATE_CORRECTED
    + """
{at}.fc1_latent_proj.weight  latent hidden  ? latent
{at}.fc2_latent_proj.weight  hidden latent  ? latent
"""
)
GATE_AFMOE = """
{at}.expert_bias         experts
{at}.router.gate.weight  experts hidden
"""
ROUTER = """
{at}.router.weight  experts hidden
"""
ROUTER_BIAS = (
    ROUTER
    + """
{at}.router.bias  experts
"""
)
ROUTER_LAYER = """
{at}.router.layer.weight  experts hidden
"""
JETMOE = ROUTER_LAYER + "{at}.bias  hidden\n"

# Experts that every token uses.
SHARED = """
{at}.shared_experts.gate_proj.weight  shared hidden  ? shared_experts
{at}.shared_experts.up_proj.weight    shared hidden  ? shared_experts
{at}.shared_experts.down_proj.weight  hidden shared  ? shared_experts
"""
SHARED_PLAIN = """
{at}.shared_experts.up_proj.weight    shared hidden  ? shared_experts
{at}.shared_experts.down_proj.weight  hidden shared  ? shared_experts
"""
SHARED_ALWAYS = SHARED.replace("  ? shared_experts", "")
SHARED_ONE = SHARED_ALWAYS.replace("shared_experts.", "shared_expert.")
SHARED_GATED = SHARED_ONE + "{at}.shared_expert_gate.weight  1 hidden\n"
SHARED_GRANITE = """
shared_mlp.input_linear.weight   2*shared hidden  ? shared_intermediate
shared_mlp.output_linear.weight  hidden shared    ? shared_intermediate
"""

# One routed expert.
GATED = """
gate_proj  moe hidden
up_proj    moe hidden
down_proj  hidden moe
"""
GATED_BIAS = """
gate_up_proj       2*moe hidden
gate_up_proj_bias  2*moe
down_proj          hidden moe
down_proj_bias     hidden
"""
PLAIN_LATENT = """
up_proj    moe latent      ? latent
down_proj  latent moe      ? latent
up_proj    moe hidden      ? !latent
down_proj  hidden moe      ? !latent
"""
