"""The numbers without a screen."""

import itertools
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from miractl.telemetry.client import Client
from miractl.top.glyphs import ASCII, UNICODE
from miractl.top.history import read
from miractl.top.report import report_json, report_text
from tests.telemetry.snapshots import BASE, changed, later, on_cuda

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("name", "reading"),
    [("cpu", read(BASE, later(BASE))), ("cuda", read(None, on_cuda()))],
)
def test_text(golden: Callable[[str, str], None], name: str, reading: Any) -> None:
    golden(f"top-{name}.txt", report_text(reading, UNICODE) + "\n")


def test_ascii_text_is_ascii() -> None:
    assert report_text(read(BASE, later(BASE)), ASCII).isascii()


def test_json_is_in_base_units() -> None:
    facts = json.loads(json.dumps(report_json(read(BASE, later(BASE, share=0.9))), allow_nan=False))
    assert facts["schema"] == "miractl.top/1"
    assert facts["now"]["hit_rate"] == 0.9
    assert facts["now"]["seconds"] == 1.0
    assert facts["since_start"]["lookups"] == 4040
    assert facts["memory"]["fragmentation"] is None
    assert len(facts["verdicts"]) == 4


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A server whose uptime moves only while the command sleeps; gives the seconds slept."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setattr(Client, "status", lambda self: later(BASE, sum(slept)) if slept else BASE)
    return slept


def test_once(miractl: Run, moving: list[float]) -> None:
    result = miractl("top", "--once", "--interval", "2")
    assert (result.exit_code, result.stderr, moving) == (0, "", [2.0])
    assert result.stdout == report_text(read(BASE, later(BASE, 2.0)), UNICODE) + "\n"


def test_json_alone_is_one_line(miractl: Run, moving: list[float]) -> None:
    result = miractl("top", "--json")
    assert len(result.stdout.splitlines()) == 1
    assert json.loads(result.stdout)["now"]["lookups"] == 40


def test_loop_prints_json_lines(miractl: Run, moving: list[float]) -> None:
    result = miractl("top", "--json", "--loop", "3", "--interval", "0.5")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["now"]["seconds"] for line in lines] == [0.5, 0.5, 0.5]
    assert moving == [0.5] * 3


def test_a_restart_between_two_snapshots(miractl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = itertools.chain([BASE], itertools.repeat(changed(BASE, uptime_seconds=1.0)))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(Client, "status", lambda self: next(answers))
    facts = json.loads(miractl("top", "--json").stdout)
    assert facts["now"] is None
    assert facts["since_start"]["seconds"] == 1.0


def test_ascii_option(miractl: Run, moving: list[float]) -> None:
    assert miractl("top", "--once", "--ascii").stdout.isascii()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--interval", "0.1"), "got 0.1 but expected 0.25 to 3600 seconds"),
        (("--interval", "nan"), "got nan but expected"),
        (("--loop", "0"), "--loop"),
        (("--once", "--loop", "2"), "--once and --loop exclude each other"),
        ((), "needs a terminal, use --once or --json"),
    ],
)
def test_usage(miractl: Run, arguments: tuple[str, ...], words: str) -> None:
    result = miractl("top", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_nobody_there(miractl: Run) -> None:
    result = miractl("top", "--once", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "no miractl server" in result.stderr


@pytest.mark.parametrize("terminal", ["dumb", "unknown", ""])
def test_a_terminal_that_cannot_draw(terminal: str) -> None:
    parent, child = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "miractl", "top"],
            stdin=child,
            stdout=child,
            stderr=child,
            env={**os.environ, "TERM": terminal, "NO_COLOR": "1"},
            timeout=30,
            check=False,
        )
        said = os.read(parent, 4096).decode()
    finally:
        os.close(parent)
        os.close(child)
    assert done.returncode == 2
    assert "needs a terminal, use --once or --json" in said


def test_without_a_screen_textual_is_not_imported() -> None:
    code = (
        "import sys, miractl.cli.top, miractl.cli.status, miractl.cli.heat, miractl.top.report;"
        "print([m for m in ('textual', 'torch', 'transformers', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "[]"
