"""The numbers of published models from their configs, and what is refused with which reason."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miractl.checkpoint.config import ALIASES, ModelConfig
from miractl.checkpoint.families import FAMILIES
from miractl.checkpoint.geometry import Geometry, KvGroup, geometry_of, read_geometry
from miractl.errors import MiractlError
from tests.checkpoint.published import DEEPSEEK_V3, MODELS, Published

MIXTRAL = MODELS["Mixtral-8x7B"].config
QWEN2 = MODELS["Qwen1.5-MoE-A2.7B"].config


def geometry(config: dict[str, Any], **changes: Any) -> Geometry:
    return geometry_of(ModelConfig(Path("config.json"), config | changes))


def refusal(config: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(MiractlError) as refused:
        geometry(config, **changes)
    assert refused.value.message.startswith("config.json: ")
    assert "\n" not in refused.value.message
    return refused.value.message.removeprefix("config.json: ")


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_published_models(model: Published) -> None:
    found = geometry(model.config)
    assert list(found.moe_layers) == model.moe_layers
    assert (found.experts, found.top_k) == (model.experts, model.top_k)
    assert found.parameters == model.parameters
    assert found.parameters_per_expert == model.per_expert
    assert found.bytes_per_expert == model.bytes_per_expert
    assert found.kv_elements_per_token == model.kv_elements
    assert found.parameters - found.active_parameters == (
        len(model.moe_layers) * (model.experts - model.top_k) * model.per_expert
    )


def test_sums_agree_with_each_other() -> None:
    found = geometry(QWEN2)
    assert found.expert_parameters == 12_457_082_880
    assert found.shared_parameters == 830_521_344
    assert found.embedding_parameters == 622_329_856
    assert found.parameters == found.expert_parameters + found.non_expert_parameters
    assert found.non_expert_bytes == 2 * found.non_expert_parameters
    assert found.expert_bytes == 24 * 60 * 17_301_504


def test_a_tied_head_is_counted_once() -> None:
    tied = geometry(MODELS["granite-3.1-1b-a400m"].config)
    own = geometry(MODELS["granite-3.1-1b-a400m"].config, tie_word_embeddings=False)
    assert (tied.tied, own.tied) == (True, False)
    assert own.parameters - tied.parameters == 49155 * 1024


def test_windows_limit_what_is_kept() -> None:
    found = geometry(MODELS["gpt-oss-20b"].config)
    assert found.kv == (KvGroup(12, 1024, 128), KvGroup(12, 1024, None))
    assert found.kv_bytes(1000) == 2 * 12 * 1024 * (128 + 1000)
    assert geometry(MIXTRAL, sliding_window=4096).kv == (KvGroup(32, 2048, 4096),)
    assert geometry(QWEN2).kv == (KvGroup(24, 4096, None),)  # its window is switched off


def test_hybrid_layers_keep_nothing_for_a_token() -> None:
    assert geometry(MODELS["Jamba-Mini-1.6"].config).kv == (KvGroup(4, 2048, None),)


def test_sparse_step_and_dense_layers() -> None:
    four = QWEN2 | {"num_hidden_layers": 4, "decoder_sparse_step": 2}
    assert geometry(four).moe_layers == (1, 3)
    assert geometry(four, mlp_only_layers=[3]).moe_layers == (1,)
    assert refusal(four, mlp_only_layers=[1, 3]).startswith("the rule gives []")


def test_a_list_and_a_rule_have_to_agree() -> None:
    types = ["dense", *["sparse"] * 60]
    assert len(geometry(MODELS["Kimi-K2"].config, mlp_layer_types=types).moe_layers) == 60
    assert "disagree on which layers" in refusal(
        MODELS["DeepSeek-V3"].config, mlp_layer_types=types
    )


def test_a_list_with_one_entry_a_layer() -> None:
    assert geometry(MIXTRAL, num_experts_per_tok=[2] * 32).top_k == 2
    assert "unequal experts" in refusal(MIXTRAL, num_local_experts=[8] * 31 + [16])
    said = refusal(MIXTRAL, num_local_experts=None, experts_per_layer={"0": 16, "1": 20})
    assert said == (
        "experts_per_layer says 16 to 20: layers with unequal experts are not supported"
    )


@pytest.mark.parametrize("key", ["num_experts", "n_routed_experts", "moe_num_experts"])
def test_every_name_of_a_fact_is_read(key: str) -> None:
    assert geometry(MIXTRAL | {"num_local_experts": None, key: 8}).experts == 8
    assert geometry(MIXTRAL | {key: 8}).experts == 8
    said = refusal(MIXTRAL | {key: 16})
    assert "num_local_experts = 8" in said
    assert f"{key} = 16" in said


def test_nothing_is_taken_for_granted() -> None:
    for key in ("num_experts_per_tok", "num_hidden_layers", "intermediate_size", "vocab_size"):
        said = refusal({k: v for k, v in MIXTRAL.items() if k != key})
        assert key in said
        assert "no default is taken" in said
    assert "first_k_dense_replace" in refusal(
        DEEPSEEK_V3
        | {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 9,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
        }
    )
    assert "tie_word_embeddings" in refusal(MIXTRAL, tie_word_embeddings=None)


def test_unknown_types_of_weights_have_no_bytes() -> None:
    found = geometry(MIXTRAL, torch_dtype=None)
    assert (found.bytes_per_expert, found.expert_bytes, found.non_expert_bytes) == (None,) * 3
    assert found.expert_bytes_as("BF16") == 352_321_536
    assert geometry(MIXTRAL, torch_dtype="float32").bytes_per_expert == 704_643_072
    assert "dtype = 'int8'" in refusal(MIXTRAL, torch_dtype="int8")


def test_fp8_blocks_may_be_ragged() -> None:
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    stored = {"quant_method": "fp8", "weight_block_size": [32, 40]}
    found = geometry(MIXTRAL | small, quantization_config=stored)
    scales = 2 * 3 * 2 + 2 * 3  # gate and up are 96 x 64, down is 64 x 96
    assert found.bytes_per_expert == 3 * 96 * 64 + 4 * scales


def test_packed_four_bit_experts() -> None:
    small = {"hidden_size": 64, "intermediate_size": 96}
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    found = geometry(MIXTRAL | small, quantization_config=gptq)
    gate = 4 * (8 * 96 + 2 * 12 + 64) + 2 * 2 * 96  # words, zeros, indices, scales
    down = 4 * (12 * 64 + 3 * 8 + 96) + 2 * 3 * 64
    assert found.bytes_per_expert == 2 * gate + down
    assert found.non_expert_bytes is None  # the config does not say what else is packed
    awq = geometry(MIXTRAL | small, quantization_config=gptq | {"quant_method": "awq"})
    assert awq.bytes_per_expert == 2 * gate + down - 4 * (64 + 64 + 96)  # no indices
    other = geometry(MIXTRAL, quantization_config={"quant_method": "quark"})
    assert other.bytes_per_expert is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_local_experts": None}, "num_local_experts is null: not a Mixture-of-Experts model"),
        ({"num_local_experts": 1}, "num_local_experts is 1: not a Mixture-of-Experts model"),
        ({"is_encoder_decoder": True}, "is an encoder-decoder model"),
        ({"zero_expert_num": 256}, "has zero-experts"),
        ({"intermediate_size_residual": 1792}, "has a residual expert"),
        ({"model_type": "qwen3_omni_moe"}, "two Mixture-of-Experts models"),
        ({"model_type": "brandnew"}, "models of type 'brandnew' are not known"),
        ({"model_type": None}, "model_type is not there"),
        ({"num_experts_per_tok": 9}, "a token uses 9 experts of 8"),
        ({"num_hidden_layers": 10**9}, "1,000,000,000 layers, expected at most 4,096"),
        ({"hidden_size": "4096"}, 'hidden_size = "4096", expected a whole number'),
        ({"hidden_size": True}, "hidden_size = true, expected a whole number"),
        ({"tie_word_embeddings": "no"}, 'tie_word_embeddings = "no", expected true or false'),
        ({"quantization_config": {"bits": 4}}, "quantization_config has no quant_method"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], says: str) -> None:
    assert says in refusal(MIXTRAL, **changes)


def test_a_part_of_a_larger_model_is_said_to_be_one() -> None:
    assert geometry(MODELS["Llama-4-Scout"].config).is_part
    assert not geometry(MIXTRAL).is_part


def test_formats_from_before_transformers_are_known_by_their_keys() -> None:
    native = {
        "vocab_size": 102400,
        "dim": 2048,
        "inter_dim": 10944,
        "moe_inter_dim": 1408,
        "n_layers": 27,
        "n_dense_layers": 1,
        "n_heads": 16,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "n_activated_experts": 6,
        "q_lora_rank": 0,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    found = geometry(native)
    assert (found.family, found.parameters) == ("deepseek_v2", 15_706_484_224)


def test_a_config_that_cannot_be_read(tmp_path: Path) -> None:
    for text, says in (
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        (None, "No such file"),
    ):
        if text is not None:
            (tmp_path / "config.json").write_text(text)
        else:
            (tmp_path / "config.json").unlink()
        with pytest.raises(MiractlError, match=says) as refused:
            read_geometry(tmp_path)
        assert str(tmp_path / "config.json") in refused.value.message


KEYS = sorted({key for keys in ALIASES.values() for key in keys if "." not in key})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**64)
    | st.floats()
    | st.sampled_from(["auto", "bfloat16", "sparse", "moe", "full_attention", "M*E-", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=6,
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    base=st.sampled_from([model.config for model in MODELS.values()]),
    kind=st.sampled_from([None, *FAMILIES]),
    changes=st.dictionaries(st.sampled_from([*KEYS, "text_config", "architectures"]), VALUES),
)
def test_random_configs_never_crash(
    tmp_path: Path, base: dict[str, Any], kind: str | None, changes: dict[str, Any]
) -> None:
    config = base | ({} if kind is None else {"model_type": kind}) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with contextlib.suppress(MiractlError):
        json.dumps(read_geometry(tmp_path).to_json())
        return
    with pytest.raises(MiractlError, match=r"config\.json") as refused:
        read_geometry(tmp_path)
    assert "\n" not in refused.value.message


@given(text=st.binary(max_size=40))
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_bytes_never_crash(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(MiractlError, match=r"config\.json"):
        read_geometry(tmp_path)
