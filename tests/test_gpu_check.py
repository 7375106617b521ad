"""The check of a GPU: without one it says so, and its page is made from what was found."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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
