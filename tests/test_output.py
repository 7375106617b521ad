"""Output and log: streams, colour, characters that a terminal lacks, tables, JSON lines."""

import errno
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from miractl import log, output
from miractl.errors import MiractlError
from miractl.output import Output, table

ASCII_WORLD = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PATH": "/bin"}


class Terminal(io.StringIO):
    """A stream that says it is a terminal with the given encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return True


@pytest.fixture
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


@pytest.mark.parametrize(
    ("variables", "colored"),
    [
        ({}, True),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_color(variables: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert output.use_color(Terminal()) is colored
    assert output.use_color(io.StringIO()) is False
    assert Output(color=True).style("x", "red") == "\x1b[31mx\x1b[0m"
    assert Output(color=False).style("x", "red") == "x"


@pytest.mark.parametrize(
    ("encoding", "locale", "expected"),
    [
        ("utf-8", "", True),
        ("UTF8", "de_DE.UTF-8", True),
        ("utf-8", "C", False),
        ("utf-8", "POSIX", False),
        ("ascii", "", False),
        ("cp1252", "", False),
        ("no-such-encoding", "", False),
    ],
)
def test_unicode(
    encoding: str, locale: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    assert output.use_unicode(Terminal(encoding)) is expected


def test_streams(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(color=False)
    out.data("data")
    out.json({"a": None})
    out.note("note")
    out.warn("careful")
    out.error(MiractlError("broken", hint="mend"))
    captured = capsys.readouterr()
    assert captured.out == 'data\n{\n  "a": null\n}\n'
    assert captured.err == "note\nwarning: careful\nerror: broken\nhint:  mend\n"


class Full(io.StringIO):
    """A stream into a file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_behind_stderr_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    Output().note("lost")
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(OSError, match="No space left"):
        Output().data("missed")


def test_closed_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    out = Output()
    assert out.mark("ok") == "ok"
    assert out.style("x", "red") == "x"
    for write in (out.data, out.json):
        with pytest.raises(MiractlError, match="standard output is closed"):
            write("data")
    out.note("nobody hears")
    out.error(MiractlError("nobody hears"))


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Output().json({"a": float("nan")})


def test_marks() -> None:
    statuses = ("ok", "warn", "fail", "skip", "unknown")
    assert [Output(unicode=True).mark(s) for s in statuses] == ["✓", "!", "✗", "-", "?"]
    assert [Output(unicode=False).mark(s) for s in statuses] == [
        *("ok", "warn", "FAIL", "skip", "unkn"),
    ]


def test_ascii_locale_never_raises() -> None:
    code = r"""
from miractl.errors import MiractlError
from miractl.output import Output
out = Output()
out.data(out.mark("ok") + " 3 \u00b5s \u00b7 \u2265 2 \u2192 \u4e2d")
out.error(MiractlError("\u00fcnknown"))
out.json({"text": "\u4e2d"})
"""
    run = subprocess.run([sys.executable, "-c", code], env=ASCII_WORLD, capture_output=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == b'ok 3 us - >= 2 -> ?\n{\n  "text": "\\u4e2d"\n}\n'
    assert run.stderr == b"error: ?nknown\n"


def test_commands_under_an_ascii_locale() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "miractl", "profiles", "show", "a10"],
        env=ASCII_WORLD,
        capture_output=True,
        check=True,
    )
    assert run.stdout.isascii()
    assert b"\x1b" not in run.stdout


def test_table() -> None:
    rows = [("a", 1, None), ("long name", 20, 0.5)]
    assert table(rows, ("name", "count", "rate")).splitlines() == [
        "NAME       COUNT  RATE",
        "a              1   n/a",
        "long name     20   0.5",
    ]
    assert table([], ("name", "count")) == "NAME  COUNT"


@pytest.mark.usefixtures("_restored_logging")
def test_text_log(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("warning")
    logging.getLogger("miractl.test").info("quiet")
    logging.getLogger("miractl.test").warning("%d experts", 3)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("WARNING miractl.test: 3 experts\n")
    assert len(captured.err.splitlines()) == 1


@pytest.mark.usefixtures("_restored_logging")
def test_json_log(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "json")
    try:
        raise KeyError("x")
    except KeyError:
        logging.getLogger("miractl.test").exception("line\nbreak")
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert (record["level"], record["logger"]) == ("error", "miractl.test")
    assert record["message"] == "line\nbreak"
    assert "KeyError" in record["exception"]
