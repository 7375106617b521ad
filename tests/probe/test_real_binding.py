"""The real paths on libraries of our own: answers, errors, copies, and a driver that hangs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from miractl.probe.devices import MemoryUse
from miractl.probe.nvml import PATIENCE_WITHOUT_DRIVER

MIB = 2**20
COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler for the fake library")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    for name, soname in (("fake_nvml.c", "libnvidia-ml.so.1"), ("fake_cuda.c", "libcuda.so.1")):
        source, target = Path(__file__).with_name(name), folder / soname
        subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", target, source], check=True)
    return folder


def run(
    library: Path, *command: str, mode: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LD_LIBRARY_PATH": str(library), **variables}
    if mode is not None:
        env["FAKE_NVML"] = mode
    return subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, env=env, timeout=25
    )


def nvml(library: Path, mode: str | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(library, "miractl.probe.nvml", mode=mode).stdout)
    return answer


def test_a_card(library: Path) -> None:
    found = nvml(library)
    (gpu,) = found["gpus"]
    assert (found["state"], found["driver"], found["cuda"]) == ("ok", "580.95.05", "13.0")
    assert (gpu["name"], gpu["address"]) == ("NVIDIA A10", "0000:65:00.0")
    assert MemoryUse(**gpu["memory"]) == MemoryUse(1000, used=100, free=850, reserved=50)
    assert gpu["link"]["max_width"] == 8
    assert gpu["errors"]["mig"] == "NotSupported"
    assert gpu["errors"]["clock_events"] == "FunctionNotFound"


@pytest.mark.parametrize(
    ("code", "state"),
    [
        *(("4", "NoPermission"), ("9", "DriverNotLoaded"), ("18", "LibRmVersionMismatch")),
        *(("999", "Unknown"), ("12", "LibraryNotFound")),
    ],
)
def test_a_start_that_fails(library: Path, code: str, state: str) -> None:
    assert nvml(library, code)["state"] == state


def test_a_driver_that_hangs_is_named_and_does_not_hold_the_doctor(library: Path) -> None:
    # The time limit of `run` is below what the library sleeps.
    done = run(library, "miractl", "doctor", "--json", "driver.nvml", mode="hang")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["checks"][0]["status"] == "unknown"
    late = (f"no answer within {PATIENCE_WITHOUT_DRIVER:g} s", "no answer within 5 s")
    assert report["probe_problems"]["nvml"].startswith(late)


def load(library: Path, at_most: int, **variables: str) -> dict[str, Any]:
    done = run(library, "miractl.probe.load", str(at_most), **variables)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_copies(library: Path) -> None:
    found = load(library, 300 * MIB)
    (link,) = found["links"]
    assert (link["address"], link["error"]) == ("0000:65:00.0", None)
    assert link["rate"] == pytest.approx(128 * MIB / 0.010)
    assert (link["generation"], link["width"], link["replays"]) == (4, 8, 3)
    # Never more than allowed: the gigabyte is not tried.
    assert found["pins"] == [
        {"size": 64 * MIB, "error": None},
        {"size": 256 * MIB, "error": None},
    ]


def test_a_refused_pin_ends_the_trial_and_nothing_else(library: Path) -> None:
    found = load(library, 2**31, FAKE_CUDA_PIN=str(100 * MIB))
    assert found["links"][0]["rate"] is not None
    assert [pin["error"] for pin in found["pins"]] == [
        None,
        "CUDA_ERROR_OUT_OF_MEMORY in cuMemHostAlloc",
    ]


def test_no_pin_at_all(library: Path) -> None:
    found = load(library, 2**31, FAKE_CUDA_PIN="0")
    assert found["links"][0]["error"] == "CUDA_ERROR_OUT_OF_MEMORY in cuMemHostAlloc"
    assert [pin["size"] for pin in found["pins"] if pin["error"]] == [64 * MIB]


@pytest.mark.parametrize(
    ("code", "words"), [("100", "CUDA_ERROR_NO_DEVICE in cuInit"), ("999", "error 999 in cuInit")]
)
def test_cuda_that_does_not_start(library: Path, code: str, words: str) -> None:
    done = run(library, "miractl.probe.load", "0", FAKE_CUDA=code)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"CUDA does not start: {words}\n"


def test_copies_without_nvml(library: Path) -> None:
    (link,) = load(library, 0, FAKE_NVML="999")["links"]
    assert link["rate"] is not None
    assert (link["generation"], link["width"], link["replays"]) == (None, None, None)


@pytest.mark.parametrize(
    ("cuda", "verdict", "words"),
    [
        ("", "ok", "Gen4 while copying"),
        ("100", "unknown", "this says nothing yet"),
    ],
)
def test_the_doctor_under_load(library: Path, cuda: str, verdict: str, words: str) -> None:
    variables = {"FAKE_CUDA": cuda} if cuda else {}
    done = run(library, "miractl", "doctor", "--load", "--json", "pcie.gen", **variables)
    report = json.loads(done.stdout)
    assert (report["checks"][0]["status"], done.returncode) == (verdict, 0)
    assert words in report["checks"][0]["text"]
    problem = "ChildProcessError: exit code 1: CUDA does not start: CUDA_ERROR_NO_DEVICE in cuInit"
    assert report["probe_problems"].get("load") == (problem if cuda else None)
