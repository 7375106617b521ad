"""What is planned before a model is served, and that the service keeps to it."""

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from miractl.checkpoint.inspection import inspect_folder
from miractl.errors import MiractlError, UsageError
from miractl.plan.machine import Given, machine_for
from miractl.plan.planner import Plan, plan_for
from miractl.plan.request import PlanRequest
from miractl.runtime.engine import Engine
from miractl.runtime.losses import Losses
from miractl.server.batched import BatchedBackend
from miractl.server.planned import plan_to_serve
from miractl.server.words import memory_line, plan_notes
from miractl.units import GIB, MIB
from tests.checkpoint.tiny import CONFIG, HIDDEN, tensors
from tests.runtime.models import make_model, options
from tests.server.conftest import wait_until

ROOT = Path(__file__).parents[2]
HW = ROOT / "tests" / "fixtures" / "hw"


def sparse(folder: Path, vocabulary: int) -> Path:
    """A whole checkpoint whose large tensors take no room on disk."""
    shapes = {name: list(value.shape) for name, value in tensors().items()}
    shapes |= {f"{name}.weight": [vocabulary, HIDDEN] for name in ("model.embed_tokens", "lm_head")}
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": vocabulary}))
    return folder


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda name: monkeypatch.setenv("MIRACTL_FAKE_HW", str(HW / f"{name}.json"))


def test_what_does_not_fit_a_container_is_refused_before_anything_is_loaded(
    tmp_path: Path, machine: Any
) -> None:
    machine("container-limited")
    sparse(tmp_path, 32 * 2**20)
    program = (
        "import sys\n"
        "from miractl.cli.main import cli\n"
        "try:\n"
        f"    cli.main(['serve', {str(tmp_path)!r}, '--port', '0'])\n"
        "finally:\n"
        "    print(sorted({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stdout) == (1, "[]\n")
    profile, *error = done.stderr.splitlines()
    assert profile.startswith("profile default: ")
    assert error == [
        "error: weights: 1.00 GiB needed, 872 MiB free in memory",
        "hint:  a smaller or quantised model, or more memory: no context is short enough",
    ]


def test_what_fits_the_container_is_planned_for_it(tmp_path: Path, machine: Any) -> None:
    machine("container-limited")
    plan = plan_to_serve(sparse(tmp_path, 1000), PlanRequest(concurrency=2), "auto", pytest.fail)
    assert plan is not None
    assert plan.ledgers[0].total == 2 * GIB
    assert plan.slots is not None
    assert plan.own_bytes + plan.others_bytes + 512 * MIB <= 2 * GIB
    assert memory_line(plan.own_bytes, 300 * MIB).endswith(", using 300 MiB")


@pytest.mark.parametrize(
    ("hardware", "device", "computes", "staged"),
    [
        ("a10-x8-load", "auto", "cuda", 1),
        ("a10-x16", "auto", "cuda", 2),
        ("a10-x8-load", "cpu", "cpu", 2),
        ("a10-cpu-torch", "auto", "cpu", 2),
    ],
)
def test_the_plan_is_for_the_recorded_machine(
    hardware: str, device: str, computes: str, staged: int, tmp_path: Path, machine: Any
) -> None:
    machine(hardware)
    request = PlanRequest(expert_memory="70%", max_staged=2)
    plan = plan_to_serve(sparse(tmp_path, 1000), request, device, pytest.fail)
    assert plan is not None
    assert plan.machine.device == computes
    assert plan.require().staging_limit == staged
    said = [line for line in plan_notes(plan) if "1 expert is staged at a time" in line]
    assert len(said) == (staged == 1)


def test_what_cannot_be_planned_is_said_and_may_still_run(tmp_path: Path, machine: Any) -> None:
    machine("no-gpu")
    notes: list[str] = []
    sparse(tmp_path, 1000)
    assert plan_to_serve(tmp_path, PlanRequest(), "cuda:0", notes.append) is None
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "model_type": "no_such_moe"}))
    assert plan_to_serve(tmp_path, PlanRequest(), "auto", notes.append) is None
    assert [note.endswith("slots by the weights' sizes alone") for note in notes] == [True, True]
    assert "'no_such_moe'" in notes[1]


def test_faults_of_files_and_wrong_usage_are_no_matter_of_plans(
    tmp_path: Path, machine: Any
) -> None:
    machine("a10-x16")
    sparse(tmp_path, 1000)
    with pytest.raises(UsageError, match="cuda:7 is not there"):
        plan_to_serve(tmp_path, PlanRequest(), "cuda:7", pytest.fail)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(MiractlError, match=r"model\.safetensors"):
        plan_to_serve(tmp_path, PlanRequest(), "auto", pytest.fail)


def planned(folder: Path, **asked: Any) -> Plan:
    geometry = inspect_folder(folder).geometry
    assert geometry is not None
    return plan_for(
        geometry, machine_for(None, None, Given(host_memory=8 * GIB)), PlanRequest(**asked)
    )


def test_who_waits_is_said(tmp_path: Path) -> None:
    make_model(tmp_path, "Qwen3Moe")
    assert plan_notes(planned(tmp_path, concurrency=5)) == []
    assert plan_notes(planned(tmp_path, concurrency=5, kv_memory=700_000)) == [
        "keys and values get 672 KiB: 2 of 5 requests at full context at once, others wait"
        " (--kv-memory for more)"
    ]


@pytest.mark.parametrize("family", ["Qwen3Moe", "Mixtral", "GptOss"])
@pytest.mark.parametrize("bound", [None, 700_000])
def test_the_cache_is_as_large_as_the_line_of_the_ledger(
    family: str, bound: int | None, tmp_path: Path
) -> None:
    stock = make_model(tmp_path, family)
    plan = planned(tmp_path, concurrency=5, kv_memory=bound)
    cache = plan.needs.kv_cache()
    assert cache is not None
    backend = BatchedBackend(stock, 5, cache.blocks, Losses())
    try:
        wait_until(lambda: backend._manager.batch_processor is not None, "the cache")
        made = backend._manager.batch_processor.cache
        assert made.cache_tensor.numel() == cache.bytes == plan.needs.kv().bytes
        assert made.max_tokens_read == cache.tokens
    finally:
        backend.close(timeout=5.0)
    assert plan.runs


def test_an_engine_takes_the_slots_of_its_plan(tmp_path: Path) -> None:
    make_model(tmp_path, "Qwen3Moe")
    slots = planned(tmp_path, expert_memory="50%").require()
    engine = Engine.load(replace(options(tmp_path, "100%"), slots=slots))
    try:
        assert engine.plan.pools == (slots,)
    finally:
        engine.close()


def test_a_plan_for_another_type_or_device_is_not_used(
    tmp_path: Path, machine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    machine("container-limited")
    make_model(tmp_path, "Qwen3Moe")
    slots = planned(tmp_path, dtype="BF16").require()
    with caplog.at_level(logging.WARNING):
        engine = Engine.load(replace(options(tmp_path, None), slots=slots))
    try:
        assert engine.plan.expert_bytes == 2 * slots.expert_bytes
        assert engine.plan.slots == 24
    finally:
        engine.close()
    assert "the plan is not for this model on cpu in float32" in caplog.text
