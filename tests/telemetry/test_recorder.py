"""Writing a routing trace step by step: whole or not at all, and read back the same."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from miractl.errors import MiractlError, UsageError
from miractl.telemetry import recorder as module
from miractl.telemetry.recorder import Recorder
from miractl.telemetry.trace import read_trace

LAYERS, TOP = 3, 2
META = {"model": "m/n", "layer_indices": [0, 2, 4]}


def recorder(path: Path, experts: int = 8) -> Recorder:
    return Recorder(path, LAYERS, experts, TOP, META)


def add(to: Recorder, tokens: list[tuple[int, int]], value: int) -> None:
    """One step of (sequence, position)."""
    sequences, positions = np.array(tokens).T
    ids = np.full((len(tokens), LAYERS, TOP), value)
    ids[:, :, 1] += 1
    tape = np.array([value, -value, value * 10**12])
    to.add(sequences, positions, ids, ids / 8, np.arange(LAYERS) + float(value), tape)


@pytest.mark.parametrize(("experts", "high"), [(8, 7), (300, 299)])
def test_texts_are_put_together(tmp_path: Path, experts: int, high: int) -> None:
    target = tmp_path / "t.npz"
    to = recorder(target, experts)
    add(to, [(4, 0), (4, 1)], 0)
    add(to, [(7, 5), (4, 2)], 2)
    add(to, [(4, 3), (7, 6)], high - 1)
    assert to.finish({"lost": None}) == 6
    trace = read_trace(target)
    assert (trace.model, trace.experts, trace.layer_indices) == ("m/n", experts, (0, 2, 4))
    assert (trace.lengths, trace.first_positions) == ((4, 2), (0, 5))
    assert trace.ids[:, 0].tolist() == [
        *([0, 1], [0, 1], [2, 3], [high - 1, high]),
        *([2, 3], [high - 1, high]),
    ]
    assert trace.probabilities is not None
    np.testing.assert_allclose(trace.probabilities, trace.ids / 8, rtol=1e-3)
    assert trace.steps is not None
    assert trace.steps.tolist() == [0, 0, 1, 2, 1, 2]
    assert trace.rows is not None
    assert trace.rows.tolist() == [0, 1, 1, 0, 0, 1]
    told = [(value, -value, value * 10**12) for value in (0, 2, high - 1)]
    assert list(trace.tape_numbers()) == [number for step in told for number in step]
    assert trace.gate_seconds is not None
    assert trace.gate_seconds[:, 0].tolist() == [0, 2, high - 1]
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]


def test_a_tape_that_tells_not_all_is_left_out(tmp_path: Path) -> None:
    to = recorder(tmp_path / "t.npz")
    add(to, [(0, 0)], 1)
    to.finish({"lost": "a step failed"}, tape=False)
    trace = read_trace(tmp_path / "t.npz")
    assert (trace.tape, trace.lost) == (None, "a step failed")


def test_more_tokens_than_are_written_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 3)
    to = recorder(tmp_path / "t.npz")
    for position in range(10):
        add(to, [(position % 2, position)], position % 7)
    assert to.finish({}) == 10
    ids = read_trace(tmp_path / "t.npz").ids
    assert ids[:, 1, 0].tolist() == [p % 7 for p in (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)]


def test_a_recording_of_nothing_leaves_no_file(tmp_path: Path) -> None:
    assert recorder(tmp_path / "t.npz").finish({}) == 0
    assert not list(tmp_path.iterdir())


def test_what_would_be_too_large_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    to = recorder(tmp_path / "t.npz")  # 18 bytes a token and 24 a step
    for position in range(5):
        add(to, [(0, position)], 1)
        assert to.full == (position >= 2)
    assert to.finish({}) == 2
    assert len(read_trace(tmp_path / "t.npz").ids) == 2


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        recorder(tmp_path / "none" / "t.npz")


def test_nothing_that_is_there_is_overwritten(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    folder, link = tmp_path / "folder", tmp_path / "link.npz"
    folder.mkdir()
    link.symlink_to(precious)
    for target, said in (
        (precious, "is there already"),
        (folder, "is a folder"),
        (link, "is there already"),
        (Path("/dev/null"), "is there already"),
    ):
        with pytest.raises(UsageError, match=said):
            recorder(target)
    assert precious.read_text() == "mine"


def test_a_disk_that_is_full_at_the_end_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = recorder(tmp_path / "t.npz")
    add(to, [(0, 0)], 1)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for spool in (to._tokens, to._seconds, to._tape):
        spool.close()

    class Full:
        def __getattr__(self, name: str) -> Callable[..., None]:
            def fail(*_: object) -> None:
                raise full

            return fail

    monkeypatch.setattr(to, "_tokens", Full())
    monkeypatch.setattr(to, "_seconds", Full())
    monkeypatch.setattr(to, "_tape", Full())
    with pytest.raises(MiractlError, match="No space left"):
        to.finish({})
    assert list(tmp_path.iterdir()) == []
