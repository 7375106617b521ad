"""The installed pynvml on a library of our own: success, errors, and a driver that hangs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from miractl.probe.facts import MemoryUse
from miractl.probe.nvml import PATIENCE_WITHOUT_DRIVER

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler for the fake library")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", target, source], check=True)
    return folder


def run(library: Path, *command: str, mode: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LD_LIBRARY_PATH": str(library)}
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
