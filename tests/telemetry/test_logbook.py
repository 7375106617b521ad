"""`miractl top --record` and `--replay`: what is kept, and how it is played."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from miractl.errors import MiractlError, UsageError
from miractl.telemetry.logbook import Logbook, read_logbook
from miractl.telemetry.snapshot import Snapshot
from miractl.top.playback import Playback
from tests.telemetry.snapshots import BASE, later

Run = Callable[..., Any]
Serve = Callable[[dict[str, tuple[int, Any]]], str]
COURSE = [BASE, later(BASE, share=0.5), later(later(BASE, share=0.5), share=0.9)]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    book = Logbook(tmp_path / "r.jsonl")
    for snapshot in COURSE:
        book.add(snapshot)
    book.close()
    return book.path


def test_what_is_written_is_read(recording: Path) -> None:
    assert read_logbook(recording, pytest.fail) == COURSE


@pytest.mark.parametrize("form", ["--json", "--loop=9"])
def test_a_cut_last_line_is_left_out_and_said(recording: Path, miractl: Run, form: str) -> None:
    whole = miractl("top", "--replay", str(recording), form)
    recording.write_bytes(recording.read_bytes()[:-20])
    result = miractl("top", "--replay", str(recording), form)
    assert result.exit_code == 0
    said = f"warning: recording {recording}: line 3, the last, was cut and is left out\n"
    assert (whole.stderr, result.stderr) == ("", said)
    assert result.stdout
    assert whole.stdout.startswith(result.stdout)


def test_a_line_that_is_whole_without_its_end_is_read(recording: Path) -> None:
    recording.write_bytes(recording.read_bytes()[:-1])
    assert read_logbook(recording, pytest.fail) == COURSE


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no snapshot in it"),
        (b'{"schema"', "line 1 is no status of a server"),
        (b"{}\n", "line 1 is no status of a server"),
        (b"[1]\n", "line 1 is no status of a server"),
        (b"\xff\xfe", "not a text"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=reason):
        read_logbook(path, pytest.fail)


def test_nothing_is_overwritten(recording: Path) -> None:
    with pytest.raises(UsageError, match="is there already"):
        Logbook(recording)


def test_playback_stays_at_the_end() -> None:
    playback = Playback(COURSE)
    assert [playback.status() for _ in range(4)] == [*COURSE, COURSE[-1]]
    assert playback.place == "record 3 of 3"


def test_playback_halts_while_held() -> None:
    playback = Playback(COURSE)
    playback.held = True
    assert [playback.status(), playback.status()] == [COURSE[0]] * 2
    playback.held = False
    assert playback.status() == COURSE[1]


def test_playback_has_the_pace_of_the_recording() -> None:
    assert Playback(COURSE).interval == COURSE[1].timestamp - COURSE[0].timestamp
    assert Playback(COURSE[:1]).interval == 1.0


def test_record_and_replay(serve: Serve, miractl: Run, tmp_path: Path) -> None:
    url = serve({"/v1/status": (200, BASE.to_json())})
    path = tmp_path / "r.jsonl"
    words = ("top", "--once", "--interval", "0.25", "--url", url, "--record", str(path))
    result = miractl(*words)
    assert result.exit_code == 0
    assert f"recorded 2 snapshots in {path}" in result.stderr
    assert read_logbook(path, pytest.fail) == [BASE, BASE]


def test_replay_prints_all_without_waiting(recording: Path, miractl: Run) -> None:
    result = miractl("top", "--replay", str(recording), "--json", "--interval", "3600")
    rates = [json.loads(line)["now"]["hit_rate"] for line in result.stdout.splitlines()]
    assert rates == pytest.approx([0.5, 0.9])
    once = miractl("top", "--replay", str(recording), "--once", "--json")
    assert json.loads(once.stdout)["now"]["hit_rate"] == pytest.approx(0.9)
    first = miractl("top", "--replay", str(recording), "--loop", "1", "--json")
    assert json.loads(first.stdout)["now"]["hit_rate"] == pytest.approx(0.5)


def test_replay_of_one_snapshot(tmp_path: Path, miractl: Run) -> None:
    book = Logbook(tmp_path / "one.jsonl")
    book.add(BASE)
    book.close()
    result = miractl("top", "--replay", str(book.path), "--json")
    facts = json.loads(result.stdout)
    assert (facts["now"], facts["since_start"]["lookups"]) == (None, 4000)


def test_a_full_disk_ends_the_recording_not_the_numbers(
    serve: Serve, miractl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Logbook, snapshot: Snapshot) -> None:
        raise MiractlError(f"cannot record to {self.path}: No space left on device")

    monkeypatch.setattr(Logbook, "add", refuse)
    url = serve({"/v1/status": (200, BASE.to_json())})
    words = ("top", "--once", "--interval", "0.25", "--url", url)
    result = miractl(*words, "--record", str(tmp_path / "r.jsonl"))
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert "hit rate" in result.stdout


def test_without_an_answer_there_is_no_file(miractl: Run, tmp_path: Path) -> None:
    words = ("top", "--once", "--url", "http://127.0.0.1:9", "--record", str(tmp_path / "r.jsonl"))
    assert miractl(*words).exit_code == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("other", [("--record", "x"), ("--url", "http://127.0.0.1:9")])
def test_one_source(recording: Path, miractl: Run, other: tuple[str, str]) -> None:
    result = miractl("top", "--once", "--replay", str(recording), *other)
    assert result.exit_code == 2
    assert f"--replay and {other[0]} exclude each other" in result.stderr
