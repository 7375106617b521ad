"""Children import what their parent does, whatever lies in the folder where they are started."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

import miractl
from miractl.own_python import command_for, imports_as_here

OWN = Path(miractl.__file__).parent


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder has a miractl and a json of its own."""
    (tmp_path / "miractl").mkdir()
    for name in ("miractl/__init__.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('run from the present folder')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_module_is_our_own(trap: Path) -> None:
    done = subprocess.run(command_for("miractl.probe.nvml"), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert '"state": ' in done.stdout


def test_arguments_are_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "said.py").write_text("import sys; print(sys.argv[1:])")
    monkeypatch.syspath_prepend(tmp_path)
    done = subprocess.run(command_for("said", "1", "x y"), capture_output=True, text=True)
    assert done.stdout == "['1', 'x y']\n"


def test_what_multiprocessing_starts_is_our_own(trap: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with imports_as_here():
        process = context.Process(target=_tell, args=(theirs,))
        process.start()
    assert ours.recv() == str(OWN)
    process.join()


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("PYTHONPATH", "somewhere")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before = dict(os.environ)
    with imports_as_here():
        assert os.environ["PYTHONSAFEPATH"] == "1"
        assert sys.path[-1] in os.environ["PYTHONPATH"]
    assert dict(os.environ) == before


def _tell(answer: "multiprocessing.connection.Connection") -> None:
    import miractl as found

    answer.send(str(Path(found.__file__).parent))
