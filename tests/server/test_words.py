"""The lines of a start, and the command that prints them."""

import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from miractl import paths
from miractl.cli.serve import DEMO_ID, locate
from miractl.errors import UsageError
from miractl.server import words
from tests.server.tiny import TinyEngine

A10 = {"cache_threshold": 0.25, "prediction_window_ms": 300, "prefetch": True, "other": 1}


def test_profile_line_has_the_values_that_matter() -> None:
    line = words.profile_line("a10", A10)
    assert line == "profile a10: cache_threshold 0.25, prediction_window_ms 300, prefetch true"


def test_device_line_says_what_a_profile_means_on_a_cpu() -> None:
    assert words.device_line("cuda:0", "auto", "a10") == "running on cuda:0"
    assert words.device_line("cpu", "auto", "a10") == (
        "no CUDA device: running on the CPU; of profile a10 the thresholds, window and staging"
        " limits apply, its GPU memory, pinned buffer and link do not"
    )
    assert words.device_line("cpu", "cpu", "cpu") == "running on the CPU as asked"


def test_model_lines_have_budget_and_slots() -> None:
    snapshot = TinyEngine().snapshot()
    snapshot = replace(snapshot, cache=replace(snapshot.cache, slots=3, budget_bytes=18432))
    lines = words.model_lines(snapshot, "continuous batching", 128, 8)
    assert lines[0] == "model tiny: qwen3_moe, 2 MoE layers of 4 experts, 2 at a time; float32"
    assert lines[1] == "experts: float32, computed by torch; attention and head: float32"
    assert lines[2] == "expert memory 18 KiB: 3 slots of 6 KiB for 8 experts (38%)"
    assert lines[3] == "sets x ways 1 x 4, CPU threads 1"
    assert lines[4] == "requests: continuous batching, at most 8 at a time, 128 tokens each"


def test_the_experts_line_says_what_computes_and_why_it_is_slow() -> None:
    model = TinyEngine().snapshot().model
    native = replace(model, expert_format="i4k", kernels="avx2")
    assert words.experts_line(native) == (
        "experts: i4k records, computed as stored (avx2); attention and head: float32"
    )
    slow = replace(model, kernels_note="int4 experts become float32 on arrival: no C compiler")
    assert words.experts_line(slow) == (
        "experts: float32, computed by torch; attention and head: float32;"
        " int4 experts become float32 on arrival: no C compiler"
    )


def test_try_lines_name_the_address_only_where_it_is_needed() -> None:
    usual = "\n".join(words.try_lines(words.DEFAULT_URL, "m", "ROMEO:"))
    other = "\n".join(words.try_lines("http://127.0.0.1:9", "m", "ROMEO:"))
    assert "miractl top\n" in usual
    assert "miractl heat export -o heat.csv" in usual
    assert "miractl top --url http://127.0.0.1:9\n" in other


def test_demo_is_the_model_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "DEMO_MODEL", tmp_path)
    with pytest.raises(UsageError, match="demo model is not in"):
        locate(None)
    (tmp_path / "config.json").write_text("{}")
    assert locate(None) == (tmp_path, DEMO_ID)
    assert locate(str(tmp_path)) == (tmp_path, tmp_path.name)


def test_a_hub_name_is_not_fetched(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing is fetched") as caught:
        locate("Qwen/Qwen3-30B-A3B")
    assert "hf download Qwen/Qwen3-30B-A3B" in str(caught.value.hint)
    with pytest.raises(UsageError, match=r"no config\.json"):
        locate(str(tmp_path))


def test_port_in_use_is_found_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        program = (
            "import sys\n"
            "from miractl.cli.serve import command\n"
            "from miractl.errors import MiractlError\n"
            "try:\n"
            f"    command([{str(tmp_path)!r}, '--port', '{port}'], standalone_mode=False)\n"
            "except MiractlError as error:\n"
            "    print(error)\n"
            "print(sorted({'torch', 'transformers', 'textual'} & set(sys.modules)))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            check=True,
        )
    assert done.stdout == f"port {port} is in use\n[]\n"


def test_wrong_model_is_one_line(miractl: Callable[..., Result]) -> None:
    result = miractl("serve", "nowhere")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0].startswith("error: no folder 'nowhere'")
