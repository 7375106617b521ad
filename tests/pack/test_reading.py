"""Packed folders are models like any other, and as-is packs give the very same numbers."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result

from miractl.checkpoint.packed import RECORDS, read_manifest
from miractl.errors import MiractlError
from miractl.native import reference
from miractl.policy.keys import ExpertKey
from miractl.runtime import packed
from miractl.runtime.files import CheckpointFiles
from miractl.runtime.loading import Checkpoint
from miractl.runtime.outline import read_outline
from miractl.runtime.packing import pack
from miractl.runtime.quality import expert_errors
from miractl.runtime.ticket import carry_out
from miractl.runtime.verify import verify
from tests.runtime.families import FAMILIES, make_family
from tests.runtime.models import logits, make_model, options
from tests.runtime.test_formats import rewrite, tensors_of, to_fp8

QUANTIZABLE = {"moe_intermediate_size": 64}


@pytest.mark.parametrize("family", ["Qwen3Moe", "GptOss", "Mixtral"])
@pytest.mark.parametrize("fused", [False, True])
def test_as_is_gives_the_same_bits(tmp_path: Path, family: str, fused: bool) -> None:
    make_model(tmp_path / "source", family, fused)
    pack(tmp_path / "source", tmp_path / "packed", "as-is")
    assert torch.equal(logits(tmp_path / "source"), logits(tmp_path / "packed"))


def test_as_is_converts_like_the_source_where_the_slot_has_another_type(tmp_path: Path) -> None:
    make_model(tmp_path / "source", "Qwen3Moe")
    pack(tmp_path / "source", tmp_path / "packed", "as-is")
    both = [logits(tmp_path / name, "bfloat16") for name in ("source", "packed")]
    assert torch.equal(*both)


def test_an_expert_is_one_read_into_the_slot_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "source", "GptOss")
    pack(tmp_path / "source", tmp_path / "packed", "as-is")
    outline = read_outline(tmp_path / "packed")
    source = Checkpoint(tmp_path / "packed", outline).source
    slot = {name: torch.empty(shape) for name, shape in outline.shapes.items()}
    places = {tensor.data_ptr() for tensor in slot.values()}
    reads: list[set[int]] = []
    scatter = CheckpointFiles.scatter

    def counted(self: CheckpointFiles, buffers: list[torch.Tensor], *where: object) -> int:
        reads.append({buffer.data_ptr() for buffer in buffers if buffer.numel()})
        return scatter(self, buffers, *where)  # type: ignore[arg-type]

    monkeypatch.setattr(CheckpointFiles, "scatter", counted)
    source.read(ExpertKey(1, 2), slot)
    assert len(reads) == 1
    assert places <= reads[0]
    source.close()


@pytest.mark.parametrize(("kind", "chunk"), [("as-is", 4096), ("int4", 4096), ("as-is", 1 << 20)])
def test_an_expert_in_chunks_is_the_same_expert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, chunk: int
) -> None:
    monkeypatch.setattr(packed, "DISK_CHUNK", chunk)
    make_model(tmp_path / "source", "Qwen3Moe", moe_intermediate_size=64)
    manifest = pack(tmp_path / "source", tmp_path / "packed", kind)
    outline = read_outline(tmp_path / "packed")
    source = Checkpoint(tmp_path / "packed", outline).source
    shapes = outline.shapes if kind == "as-is" else {"record": (manifest.record.nbytes,)}
    dtype = torch.float32 if kind == "as-is" else torch.uint8
    whole, slot = ({n: torch.empty(s, dtype=dtype) for n, s in shapes.items()} for _ in range(2))
    key = ExpertKey(1, 2)
    chunks = source.chunks(key, slot)
    assert chunks == (max(1, round(manifest.record.nbytes / chunk)))
    source.read(key, whole)
    course = source.course(key, slot, chunks)
    left = [next(course) for _ in range(chunks - 1)]
    assert carry_out(course) >= manifest.record.used
    assert left == sorted(left)
    assert all(torch.equal(whole[name], slot[name]) for name in shapes)
    source.close()


def test_fp8_experts_stay_codes_and_give_the_same_bits(tmp_path: Path) -> None:
    source = tmp_path / "source"
    make_model(source, "DeepseekV3")
    stored = {}
    for name, tensor in tensors_of(source).items():
        stored[name] = tensor
        if name.endswith("_proj.weight") or "a_proj" in name:
            stored[name], stored[f"{name}_scale_inv"], _ = to_fp8(tensor)
    rewrite(source, stored, {"quant_method": "fp8", "weight_block_size": [20, 20]})
    manifest = pack(source, tmp_path / "packed", "as-is")
    assert {part.tensor.encoding for part in manifest.record.parts} == {"fp8"}
    assert manifest.record.used < 32 * 24 * 3 * 2  # less than two bytes a weight
    assert torch.equal(logits(source), logits(tmp_path / "packed"))


def make_mxfp4(folder: Path) -> None:
    """gpt-oss as it is published: codes and scales of all experts in one tensor each."""
    make_model(folder, "GptOss")
    torch.manual_seed(2)
    stored = tensors_of(folder)
    for name in [n for n in stored if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = stored.pop(name).shape
        shape = (experts, outputs, inputs // 32, 16)
        stored[f"{name}_blocks"] = torch.randint(0, 256, shape, dtype=torch.uint8)
        stored[f"{name}_scales"] = torch.randint(120, 126, shape[:3], dtype=torch.uint8)
    rewrite(folder, stored, {"quant_method": "mxfp4"})


def test_mxfp4_experts_stay_codes_and_give_the_same_bits(tmp_path: Path) -> None:
    make_mxfp4(tmp_path / "source")
    manifest = pack(tmp_path / "source", tmp_path / "packed", "as-is")
    kinds = {part.parameter: part.tensor.encoding for part in manifest.record.parts}
    assert kinds["down_proj"] == "mxfp4"
    assert kinds["down_proj_bias"] == "plain"
    assert torch.equal(logits(tmp_path / "source"), logits(tmp_path / "packed"))


@pytest.mark.parametrize(("kind", "bound"), [("int8", 0.01), ("int4", 0.12)])
def test_coded_sources_can_be_quantised(tmp_path: Path, kind: str, bound: float) -> None:
    make_mxfp4(tmp_path / "source")
    pack(tmp_path / "source", tmp_path / "packed", kind)
    errors = [e.relative for e in expert_errors(tmp_path / "packed", tmp_path / "source")]
    assert 0 < max(errors) < bound


def test_fp16_and_bf16_sources_are_stored_as_they_are(tmp_path: Path) -> None:
    for dtype, name in ((torch.float16, "F16"), (torch.bfloat16, "BF16")):
        model = make_model(tmp_path / f"first-{name}", "Qwen3Moe").to(dtype)
        model.save_pretrained(tmp_path / name)
        manifest = pack(tmp_path / name, tmp_path / f"packed-{name}", "as-is")
        assert {p.tensor.ranges[0].dtype for p in manifest.record.parts} == {name}
        assert torch.equal(logits(tmp_path / name), logits(tmp_path / f"packed-{name}"))


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize(
    ("family", "changes"), [("Qwen3Moe", QUANTIZABLE), ("GptOss", {}), ("nemotron_h", {})]
)
def test_a_slot_gets_what_the_codes_stand_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    changes: dict[str, int],
    kind: str,
) -> None:
    """Against numpy: every matrix in the kernels' order of rows, whatever the model's is."""
    if family == "nemotron_h":
        monkeypatch.setitem(FAMILIES, family, FAMILIES[family] | QUANTIZABLE)
        model = make_family(tmp_path / "source", family, fused=False, tied=False)
    else:
        model = make_model(tmp_path / "source", family, **changes)
    manifest = pack(tmp_path / "source", tmp_path / "packed", kind)
    outline = read_outline(tmp_path / "packed")
    source = Checkpoint(tmp_path / "packed", outline).source
    slot = {name: torch.full(shape, torch.nan) for name, shape in outline.shapes.items()}
    source.read(ExpertKey(1, 3), slot)
    source.close()
    own = model.get_submodule(outline.modules[1])
    for name, parameter in own.named_parameters(recurse=False):
        original, got = parameter[3].detach(), slot[name]
        if name.endswith("bias"):
            assert torch.equal(got, original)
            continue
        error = (got - original).norm() / original.norm()
        assert 0 < error < {"int8": 0.01, "int4": 0.1}[kind]
    quantized = manifest.record.quantized
    assert quantized is not None
    down = slot["down_proj"].T if quantized.transposed else slot["down_proj"]
    whole = own.down_proj[3].detach()
    weights = (whole.T if quantized.transposed else whole).numpy()
    block = reference.quantize(np.ascontiguousarray(weights), quantized.shape.down)
    assert np.array_equal(down.numpy(), reference.dequantize(block, quantized.shape.down))


@pytest.mark.parametrize("kind", ["as-is", "int8", "int4"])
def test_the_proof_passes_on_a_packed_model(tmp_path: Path, kind: str) -> None:
    make_model(tmp_path / "source", "Qwen3Moe", **QUANTIZABLE)
    pack(tmp_path / "source", tmp_path / "packed", kind)
    assert all(case.passed for case in verify(options(tmp_path / "packed", None)))


def test_inspect_tells_kind_record_and_source(
    tmp_path: Path, miractl: Callable[..., Result]
) -> None:
    make_model(tmp_path / "source", "Qwen3Moe", **QUANTIZABLE)
    pack(tmp_path / "source", tmp_path / "packed", "int4")
    result = miractl("inspect", str(tmp_path / "packed"), "--verify-hashes")
    assert result.exit_code == 0, result.output
    for words in (
        "packed as int4 (i4k, groups of 32)",
        "packed from        source",
        "bytes an expert    8 KiB (8,192 bytes)",
        "every byte is what was packed",
    ):
        assert words in result.stdout


@pytest.mark.parametrize(
    ("break_", "says"),
    [
        (lambda p: _flip(p / RECORDS, 8192 * 9 + 5), "expert 1 of layer 1 is not what was packed"),
        (lambda p: _flip(next(p.glob("rest-*")), -3), "rest-00001-of-00001.safetensors is not"),
    ],
)
def test_a_changed_byte_is_found(
    tmp_path: Path,
    miractl: Callable[..., Result],
    break_: Callable[[Path], None],
    says: str,
) -> None:
    make_model(tmp_path / "source", "Qwen3Moe", **QUANTIZABLE)
    pack(tmp_path / "source", tmp_path / "packed", "int4")
    break_(tmp_path / "packed")
    result = miractl("inspect", str(tmp_path / "packed"), "--verify-hashes")
    assert result.exit_code == 1
    assert says in result.stdout


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("break_", "says"),
    [
        (lambda p: (p / RECORDS).unlink(), "experts.bin is missing"),
        (lambda p: (p / RECORDS).write_bytes(b"short"), "experts.bin has 5 bytes"),
        (lambda p: (p / "manifest.json").write_text("{"), "not a manifest"),
        (lambda p: (p / "manifest.json").write_text('{"version": 9}'), "reads versions 1 and 2"),
        (lambda p: next(p.glob("rest-*")).unlink(), "rest-00001-of-00001.safetensors is missing"),
    ],
)
def test_a_broken_folder_is_refused_before_loading(
    tmp_path: Path, break_: Callable[[Path], None], says: str
) -> None:
    make_model(tmp_path / "source", "Qwen3Moe")
    pack(tmp_path / "source", tmp_path / "packed", "as-is")
    break_(tmp_path / "packed")
    with pytest.raises(MiractlError) as refused:
        logits(tmp_path / "packed")
    assert says in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("as-is", lambda record: record["parts"][0].update(offset=1)),
        ("as-is", lambda record: record["parts"][0].update(strides=[256, 1])),
        ("as-is", lambda record: record["parts"].pop()),
        ("int4", lambda record: record["expert"].update(transposed=False)),
        ("int4", lambda record: record["expert"].update(hidden=64, inner=32)),
    ],
)
def test_a_record_that_does_not_fit_the_slots_is_refused(
    tmp_path: Path, kind: str, change: Callable[[dict[str, Any]], None]
) -> None:
    """A manifest that somebody wrote cannot make the reader write outside of a slot."""
    make_model(tmp_path / "source", "GptOss")
    pack(tmp_path / "source", tmp_path / "packed", kind)
    path = tmp_path / "packed" / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest["record"])
    path.write_text(json.dumps(manifest))
    with pytest.raises(MiractlError, match=r"are not experts of the model|contradict each other"):
        logits(tmp_path / "packed")


def test_records_are_aligned_and_found_by_a_rule(tmp_path: Path) -> None:
    make_model(tmp_path / "source", "GptOss")
    for kind in ("as-is", "int8", "int4"):
        pack(tmp_path / "source", tmp_path / kind, kind)
        manifest = read_manifest(tmp_path / kind)
        places = [manifest.offset(n, e) for n in range(3) for e in range(4)]
        assert all(place % 4096 == 0 for place in places)
        steps = {after - before for before, after in pairwise(places)}
        assert steps == {manifest.record.nbytes}
        assert (tmp_path / kind / RECORDS).stat().st_size == places[-1] + manifest.record.nbytes


def make_partly_fp8(folder: Path, is_coded: Callable[[str], bool]) -> None:
    """Experts of which some matrices are FP8 codes and the others are plain."""
    make_model(folder, "DeepseekV3")
    stored = {}
    for name, tensor in tensors_of(folder).items():
        stored[name] = tensor
        if ".experts." in name and is_coded(name):
            stored[name], stored[f"{name}_scale_inv"], _ = to_fp8(tensor)
    rewrite(folder, stored, {"quant_method": "fp8", "weight_block_size": [20, 20]})


def test_experts_with_coded_and_plain_matrices_stay_as_they_are(tmp_path: Path) -> None:
    make_partly_fp8(tmp_path / "source", lambda name: "down_proj" not in name)
    manifest = pack(tmp_path / "source", tmp_path / "packed", "as-is")
    assert {part.tensor.encoding for part in manifest.record.parts} == {"fp8", "plain"}
    assert torch.equal(logits(tmp_path / "source"), logits(tmp_path / "packed"))


def test_coded_and_plain_experts_side_by_side_are_one_line(tmp_path: Path) -> None:
    make_partly_fp8(tmp_path / "source", lambda name: int(name.split(".")[5]) % 2 == 0)
    logits(tmp_path / "source")
    with pytest.raises(MiractlError, match="experts are stored in several types") as refused:
        pack(tmp_path / "source", tmp_path / "packed", "as-is")
    assert refused.value.hint == "pack them with --experts int8"
    assert not list(tmp_path.glob("packed*"))
