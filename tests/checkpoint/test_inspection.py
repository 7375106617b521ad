"""Faults of broken checkpoints: each is found, named and, where it is in the way, fatal."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from miractl.checkpoint.faults import Fault
from miractl.checkpoint.inspection import Inspection, inspect_folder
from miractl.checkpoint.shards import INDEX
from tests.checkpoint import tiny

W1 = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
SECOND = "model-00002-of-00002.safetensors"


def codes(found: Inspection) -> list[str]:
    return [fault.code for fault in found.faults]


def only(found: Inspection) -> Fault:
    assert len(found.faults) == 1, codes(found)
    return found.faults[0]


def test_a_whole_checkpoint_has_no_faults(tmp_path: Path) -> None:
    found = inspect_folder(tiny.write(tmp_path, tiny.tensors()))
    assert found.faults == ()
    assert found.usable
    assert found.layout == "one tensor an expert"
    assert found.geometry is not None
    assert found.geometry.sizes_from == "headers"
    assert found.geometry.bytes_per_expert == tiny.EXPERT_BYTES
    held = sum(tensor.nbytes for tensor in tiny.tensors().values())
    experts = tiny.LAYERS * tiny.EXPERTS * tiny.EXPERT_BYTES
    assert found.geometry.expert_bytes == experts
    assert found.geometry.non_expert_bytes == held - experts
    assert sum(stored.bytes for stored in found.stored) == held


def test_config_and_headers_agree_on_bytes(tmp_path: Path) -> None:
    whole = inspect_folder(tiny.write(tmp_path, tiny.tensors())).geometry
    for path in tmp_path.glob("model*"):
        path.unlink()
    config_only = inspect_folder(tmp_path)
    assert codes(config_only) == ["no-weights"]
    assert config_only.usable
    assert config_only.geometry is not None
    assert whole is not None
    assert config_only.geometry.sizes_from == "config"
    assert config_only.geometry.bytes_per_expert == whole.bytes_per_expert
    assert config_only.geometry.non_expert_bytes == whole.non_expert_bytes


def test_fused_experts_are_recognised(tmp_path: Path) -> None:
    held = {name: t for name, t in tiny.tensors().items() if ".experts." not in name}
    for layer in range(tiny.LAYERS):
        at = f"model.layers.{layer}.mlp.experts"
        held[f"{at}.gate_up_proj"] = np.ones(
            (tiny.EXPERTS, 2 * tiny.INNER, tiny.HIDDEN), np.float16
        )
        held[f"{at}.down_proj"] = np.ones((tiny.EXPERTS, tiny.HIDDEN, tiny.INNER), np.float16)
    found = inspect_folder(tiny.write(tmp_path, held))
    assert found.faults == ()
    assert found.layout == "experts fused in one tensor"
    assert found.geometry is not None
    assert found.geometry.bytes_per_expert == tiny.EXPERT_BYTES


def test_several_shards_without_an_index(tmp_path: Path) -> None:
    found = inspect_folder(tiny.write(tmp_path, tiny.tensors(), index=False))
    assert only(found).code == "no-index"
    assert only(found).text == f"2 shards and no {INDEX}: their headers are read instead"
    assert found.usable


@pytest.mark.parametrize("index", [True, False])
def test_a_missing_shard(tmp_path: Path, index: bool) -> None:
    tiny.write(tmp_path, tiny.tensors(), index=index)
    (tmp_path / SECOND).unlink()
    found = inspect_folder(tmp_path)
    fault = only(found)
    assert (fault.code, fault.names, fault.fatal) == ("missing-shard", (SECOND,), True)
    assert fault.text == f"{SECOND} is missing in {tmp_path}"


@pytest.mark.parametrize("index", [True, False])
def test_a_git_lfs_pointer(tmp_path: Path, index: bool) -> None:
    tiny.write(tmp_path, tiny.tensors(), index=index)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4998663696\n"
    (tmp_path / SECOND).write_text(pointer)
    fault = inspect_folder(tmp_path).faults[0]
    assert fault.code == "lfs-pointer"
    assert "real size 4,998,663,696 bytes" in fault.text
    assert fault.remedy == f"cd {tmp_path} && git lfs pull"


def test_a_truncated_shard_says_where_it_ends(tmp_path: Path) -> None:
    tiny.write(tmp_path, tiny.tensors())
    raw = (tmp_path / SECOND).read_bytes()
    (tmp_path / SECOND).write_bytes(raw[:-7])
    fault = only(inspect_folder(tmp_path))
    assert fault.code == "truncated"
    assert fault.text == f"{SECOND} ends at byte {len(raw) - 7:,}, its header needs {len(raw):,}"


def test_several_faults_are_all_found(tmp_path: Path) -> None:
    held = tiny.tensors()
    del held["lm_head.weight"], held[W1]
    tiny.write(tmp_path, held)
    raw = (tmp_path / SECOND).read_bytes()
    (tmp_path / SECOND).write_bytes(raw[:-7])
    assert codes(inspect_folder(tmp_path)) == ["truncated", "missing-head", "missing-tensor"]


@pytest.mark.parametrize(
    "name",
    [
        W1,
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.block_sparse_moe.gate.weight",
        "model.layers.2.input_layernorm.weight",
        "model.embed_tokens.weight",
        "model.norm.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    held = tiny.tensors()
    del held[name]
    fault = only(inspect_folder(tiny.write(tmp_path, held)))
    assert (fault.code, fault.names, fault.text) == (
        "missing-tensor",
        (name,),
        f"{name} is missing",
    )


def test_a_projection_that_no_expert_has(tmp_path: Path) -> None:
    held = {name: t for name, t in tiny.tensors().items() if ".w3." not in name}
    fault = only(inspect_folder(tiny.write(tmp_path, held)))
    assert fault.text == "up_proj of all experts is missing"


def test_most_layers_missing_is_noticed_too(tmp_path: Path) -> None:
    found = inspect_folder(tiny.write(tmp_path, tiny.tensors(), {"num_hidden_layers": 40}))
    fault = only(found)
    assert fault.code == "missing-tensor"
    assert len(fault.names) == 37 * (7 + 3 * tiny.EXPERTS) - 37  # the router has another name


def test_a_tensor_that_its_shard_lacks(tmp_path: Path) -> None:
    tiny.write(tmp_path, tiny.tensors())
    weight_map = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    other = {SECOND: "model-00001-of-00002.safetensors"}.get(weight_map[W1], SECOND)
    tiny.write_index(tmp_path, weight_map | {W1: other})
    fault = only(inspect_folder(tmp_path))
    assert fault.code == "index-mismatch"
    assert fault.text == f"{INDEX} says that {other} holds {W1}, but it does not"


def test_an_index_that_points_outside(tmp_path: Path) -> None:
    tiny.write(tmp_path, tiny.tensors())
    weight_map = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    tiny.write_index(tmp_path, weight_map | {W1: "../other.safetensors"})
    fault = inspect_folder(tmp_path).faults[0]
    assert fault.code == "outside-folder"
    assert "'../other.safetensors'" in fault.text


@pytest.mark.parametrize("name", [W1, "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"])
def test_a_wrong_shape(tmp_path: Path, name: str) -> None:
    held = tiny.tensors()
    shape = held[name].shape
    held[name] = np.ones((3, 3), np.float16)
    fault = only(inspect_folder(tiny.write(tmp_path, held)))
    assert fault.code == "wrong-shape"
    assert fault.text == f"{name} is [3, 3], config.json makes it {list(shape)}"


def test_an_untied_head_that_is_not_there(tmp_path: Path) -> None:
    held = tiny.tensors()
    del held["lm_head.weight"]
    fault = only(inspect_folder(tiny.write(tmp_path, held)))
    assert (fault.code, fault.fatal) == ("missing-head", True)
    assert fault.remedy is not None
    assert "set tie_word_embeddings to true" in fault.remedy


def test_a_tied_head_that_is_there_is_not_counted(tmp_path: Path) -> None:
    held, tied = tiny.tensors(), {"tie_word_embeddings": True}
    both = inspect_folder(tiny.write(tmp_path, held, tied))
    assert (only(both).code, both.usable) == ("redundant-head", True)
    held["lm_head.weight"] *= 2
    assert codes(inspect_folder(tiny.write(tmp_path, held, tied))) == [
        "redundant-head",
        "different-head",
    ]
    del held["lm_head.weight"]
    without = inspect_folder(tiny.write(tmp_path, held, tied))
    assert without.faults == ()
    assert both.geometry is not None
    assert both.geometry == without.geometry


def test_whether_the_head_is_tied_can_follow_from_the_tensors(tmp_path: Path) -> None:
    held, silent = tiny.tensors(), {"tie_word_embeddings": None}
    found = inspect_folder(tiny.write(tmp_path, held, silent))
    assert found.geometry is not None
    assert not found.geometry.tied
    del held["lm_head.weight"]
    found = inspect_folder(tiny.write(tmp_path, held, silent))
    assert found.geometry is not None
    assert found.geometry.tied


def test_experts_under_an_unknown_name_are_an_error(tmp_path: Path) -> None:
    held = {name.replace(".experts.", ".experts.glu."): t for name, t in tiny.tensors().items()}
    found = inspect_folder(tiny.write(tmp_path, held))
    fault = only(found)
    assert (fault.code, len(fault.names), found.usable) == ("no-experts", 3, False)
    assert "12 experts" in fault.text
    assert "model.layers.0.block_sparse_moe.experts.glu.0.w1.weight" in fault.text


def test_more_experts_than_the_config_says(tmp_path: Path) -> None:
    found = inspect_folder(tiny.write(tmp_path, tiny.tensors(), {"num_local_experts": 3}))
    assert "expert-count" in codes(found)


def test_draft_layers_are_neither_counted_nor_missed(tmp_path: Path) -> None:
    held = tiny.tensors()
    draft = f"model.layers.{tiny.LAYERS}"
    extra = {n.replace("model.layers.0", draft): t for n, t in held.items() if ".layers.0." in n}
    whole = inspect_folder(tiny.write(tmp_path, held)).geometry
    found = inspect_folder(tiny.write(tmp_path, held | extra | {"mtp.fc.weight": held[W1]}))
    assert found.faults == ()
    assert found.geometry == whole


@pytest.mark.parametrize(
    ("stored", "code"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "format"),
        ({"quant_method": "fp8", "weight_block_size": [4, 4]}, None),
    ],
)
def test_formats_that_are_not_read(tmp_path: Path, stored: dict[str, Any], code: str) -> None:
    found = inspect_folder(tiny.write(tmp_path, tiny.tensors(), {"quantization_config": stored}))
    assert codes(found) == ([code] if code else [])


def test_a_config_that_is_refused_is_a_fault_beside_the_others(tmp_path: Path) -> None:
    tiny.write(tmp_path, tiny.tensors(), {"model_type": "brandnew"}, index=False)
    found = inspect_folder(tmp_path)
    assert codes(found) == ["family", "no-index"]
    assert (found.geometry, found.usable) == (None, False)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    tiny.write(tmp_path, tiny.tensors(), {}, index=False)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    found = inspect_folder(tmp_path)
    assert any("not a regular file" in fault.text for fault in found.faults)
