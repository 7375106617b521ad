"""Experts computed from the bytes on disk: what is in a slot, what comes of it, what it costs."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import Result

from miractl.checkpoint.inspection import inspect_folder
from miractl.native.kernels import Pool
from miractl.plan.machine import Given, machine_for
from miractl.plan.planner import plan_for
from miractl.plan.request import PlanRequest
from miractl.probe.snapshot import take
from miractl.runtime import engine as engines
from miractl.runtime.compute import KernelCompute, TorchCompute
from miractl.runtime.engine import Engine
from miractl.runtime.files import CheckpointFiles
from miractl.runtime.layer_proof import record_layers, relative_error
from miractl.runtime.loading import Checkpoint
from miractl.runtime.outline import read_outline
from miractl.runtime.packed import RECORD
from miractl.runtime.packing import pack
from miractl.runtime.verify import CONTROL, LAYER_TOLERANCE, verify
from tests.runtime.families import FAMILIES, make_family
from tests.runtime.models import make_model, options

PROMPT = torch.tensor([[5, 17, 80, 3, 44, 9, 61, 30]])
Run = Callable[..., Result]


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miractl.checkpoint.record.why_not", lambda: "no C compiler")


def logits(engine: Engine) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = engine.model(PROMPT).logits
    return result


def run(folder: Path, memory: str = "50%", **changes: object) -> Iterator[Engine]:
    engine = Engine.load(dataclasses.replace(options(folder, memory), **changes))  # type: ignore[arg-type]
    try:
        yield engine
    finally:
        engine.close()


def test_a_slot_is_a_record_and_is_counted_as_one(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[tuple[int, int]] = []
    scatter = CheckpointFiles.scatter

    def counted(self: CheckpointFiles, buffers: list[torch.Tensor], *where: object) -> int:
        reads.extend((buffer.data_ptr(), buffer.numel()) for buffer in buffers)
        return scatter(self, buffers, *where)  # type: ignore[arg-type]

    for engine in run(packed):
        assert isinstance(engine.compute, KernelCompute)
        monkeypatch.setattr(CheckpointFiles, "scatter", counted)
        logits(engine)
        facts = engine.snapshot()
        ((name, slots),) = engine.arena.buffers[0].items()
        assert name == RECORD
        assert slots.shape == (12, 8192)
        places = {slots[slot].data_ptr() for slot in range(12)}
        assert all(place % 4096 == 0 for place in places)
        assert reads
        assert all(place in places and size == 8192 for place, size in reads)
        assert facts.model.expert_bytes == 8192
        assert facts.model.expert_format == "i4k"
        assert facts.memory.arena_bytes == 12 * 8192
        assert facts.cache.resident_bytes == 8192 * facts.cache.resident
        assert facts.transfer.bytes == 8192 * len(reads)


def test_threads_and_cache_sizes_do_not_change_a_bit(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for memory, threads in (("100%", 1), ("30%", 1), ("100%", 3), ("30%", 2)):
        monkeypatch.setattr(engines, "pick_threads", lambda outline, asked, n=threads: n)
        found += [logits(engine) for engine in run(packed, memory)]
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_the_engine_has_one_pool_of_threads(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Counted(Pool):
        def __init__(self, threads: int) -> None:
            made.append(threads)
            super().__init__(threads)

    monkeypatch.setattr(engines, "Pool", Counted)
    for engine in run(packed):
        logits(engine)
    assert made == []  # the experts are tiny: nothing to divide
    monkeypatch.setattr(engines, "pick_threads", lambda *_: 3)
    for engine in run(packed):
        logits(engine)
    assert made == [3]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_compute_types_are_converted_at_the_border(packed: Path, dtype: str) -> None:
    for engine in run(packed):
        exact = logits(engine)
    for engine in run(packed, dtype=dtype):
        assert isinstance(engine.compute, KernelCompute)
        got = logits(engine)
    assert got.dtype == getattr(torch, dtype)
    assert 0 < (got.float() - exact).norm() / exact.norm() < 0.2  # attention, too, is in 16 bits


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", ["gpt_oss", "llama4_text", "nemotron_h", "deepseek_v4"])
def test_each_kind_of_experts_class_is_near_stock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, kind: str
) -> None:
    """Interleaved with biases and limits; batched and transposed; no gate; a limit."""
    wide = {"moe_intermediate_size": 64, "intermediate_size": 64}
    monkeypatch.setitem(FAMILIES, family, FAMILIES[family] | wide)
    make_family(tmp_path / "source", family, fused=False, tied=False)
    manifest = pack(tmp_path / "source", tmp_path / "packed", kind)
    assert manifest.record.quantized is not None
    assert manifest.record.quantized.computable
    outline = read_outline(tmp_path / "packed")
    stock = Checkpoint(tmp_path / "packed", outline).load_stock(torch.float32)
    layers = record_layers(stock, outline, PROMPT)
    for engine in run(tmp_path / "packed"):
        assert isinstance(engine.compute, KernelCompute)
        errors = [relative_error(engine.model, layer) for layer in layers]
    assert len(errors) == len(outline.layers)
    assert 0 < max(errors) < LAYER_TOLERANCE[manifest.record.quantized.shape.format.name]


def test_without_the_library_codes_become_numbers(packed: Path, no_library: None) -> None:
    for engine in run(packed):
        assert isinstance(engine.compute, TorchCompute)
        facts = engine.snapshot().model
        assert facts.expert_bytes == 24576
        assert (facts.expert_format, facts.kernels) == ("float32", "torch")
        assert facts.kernels_note is not None
        assert facts.kernels_note.endswith("which is slow: no C compiler")
        logits(engine)


def test_the_proof_wants_the_same_bits_and_layers_near_stock(packed: Path) -> None:
    cases = list(verify(options(packed, None)))
    assert all(case.passed for case in cases)
    assert [case.limit for case in cases] == [0.03, 0, 0, 0, 0, 0.03]
    assert cases[-1].name == CONTROL
    assert cases[-1].difference > 10 * cases[-1].limit


def test_without_the_library_the_proof_is_the_exact_one(packed: Path, no_library: None) -> None:
    cases = list(verify(options(packed, None)))
    assert all(case.passed for case in cases)
    assert {case.limit for case in cases} == {1e-5}


@pytest.mark.parametrize("version", [1, 2])
def test_records_without_an_activation_become_numbers(
    packed: Path, tmp_path: Path, version: int
) -> None:
    """Folders of version 1 do not tell it, and of others none may be known."""
    folder = tmp_path / "old"
    folder.mkdir()
    for path in packed.iterdir():
        (folder / path.name).symlink_to(path)
    manifest = json.loads((packed / "manifest.json").read_text())
    manifest["version"] = version
    if version == 1:
        del manifest["record"]["expert"]["activation"]
    else:
        manifest["record"]["expert"]["activation"] = None
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for engine in run(folder):
        note = engine.snapshot().model.kernels_note
        assert isinstance(engine.compute, TorchCompute)
        assert note is not None
        assert "the manifest tells no activation" in note


def test_an_activation_that_the_kernels_do_not_have_is_packed_for_torch(tmp_path: Path) -> None:
    make_model(tmp_path / "source", "Qwen3Moe", moe_intermediate_size=64, hidden_act="relu")
    manifest = pack(tmp_path / "source", tmp_path / "packed", "int8")
    assert manifest.to_json()["record"]["expert"]["activation"] is None
    assert all(case.passed for case in verify(options(tmp_path / "packed", None)))


def test_the_plan_knows_what_a_slot_is(packed: Path) -> None:
    geometry = inspect_folder(packed).geometry
    assert geometry is not None
    request = PlanRequest(expert_memory="50%")
    machine = machine_for(take(), device="cpu")
    plan = plan_for(geometry, machine, request)
    assert plan.require().expert_bytes == 8192
    for engine in run(packed, slots=plan.slots):
        assert engine.plan.pools == (plan.slots,)
    gpu = machine_for(None, given=Given(gpu_memory=24 * 2**30, host_memory=64 * 2**30))
    assert plan_for(geometry, gpu, request).require().expert_bytes == 24576 // 2


def test_plan_and_inspect_say_int4(packed: Path, miractl: Run) -> None:
    told = miractl("plan", str(packed), "--device", "cpu")
    assert "8 KiB, an int4 record, computed as stored" in told.stdout
    assert "BF16" not in told.stdout
    assert "experts int4, the rest F32" in miractl("inspect", str(packed)).stdout


def test_the_plan_without_the_library(packed: Path, no_library: None, miractl: Run) -> None:
    told = miractl("plan", str(packed), "--device", "cpu").stdout
    assert "24 KiB in F32, 8 KiB as stored" in told
