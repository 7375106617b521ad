"""The check of a GPU: without one it says so, and its page is made from what was found."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from miractl.runtime.streams import GPUS
from tests.runtime.fake_device import FakeDevice

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "bench" / "gpu_check.py"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_writes_nothing() -> None:
    before = SCRIPT["PAGE"].read_text()
    command = [sys.executable, str(ROOT / "bench" / "gpu_check.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr == "no CUDA device: nothing is measured, nothing is written\n"
    assert SCRIPT["PAGE"].read_text() == before


def test_the_page_is_what_was_found() -> None:
    result: Path = SCRIPT["RESULT"]
    found = json.loads(result.read_text()) if result.exists() else None
    assert SCRIPT["PAGE"].read_text() == SCRIPT["page"](found)


def test_what_it_measures_can_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that is not there; by its figures nothing is judged."""
    monkeypatch.setitem(GPUS, "cpu", lambda _: FakeDevice(1e9))
    for name, value in {"DEVICE": "cpu", "PROMPT": 4, "TOKENS": 3, "ROUNDS": 1}.items():
        monkeypatch.setitem(SCRIPT["load"].__globals__, name, value)
    assert all(row["ok"] for row in SCRIPT["outputs"](tmp_path))
    rows = SCRIPT["beside"](tmp_path)
    assert all(row["ok"] for row in rows)
    assert [row["on_host"] > 0 for row in rows] == [False, True, True] * 2
    found = SCRIPT["hosts"](tmp_path / "small-int4") | SCRIPT["decoding"](tmp_path / "small")
    assert list(found) == ["off", "auto", "on"]
    assert all(len(part["tokens_per_second"]) == 1 for part in found.values())
    page: str = SCRIPT["page"]({"device": "none", "torch": "-", "cuda": "-", "parts": found})
    assert "## auto" in page
