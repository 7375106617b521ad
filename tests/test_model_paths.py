"""Paths that cannot be right are refused before anything slow is imported."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from miractl.checkpoint.packed import MANIFEST

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders to name, and no engine."""
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "model", "packed", "gguf"):
        Path(name).mkdir()
    for name in ("model", "packed"):
        Path(name, "config.json").write_text("{}")
    Path("packed", MANIFEST).write_text("{}")
    Path("gguf", "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "miractl.runtime.engine", None)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("pack none -o new", "no model folder 'none'"),
        ("pack empty -o new", "empty: no model here, there is no config.json"),
        ("pack gguf -o new", "gguf holds its weights as GGUF files"),
        ("pack model -o empty", "empty is there already"),
        ("pack packed -o new", "packed is packed already"),
        ("bench quality none --text t", "no model folder 'none'"),
        ("bench quality empty --text t", "empty: no model here"),
        ("bench quality packed --text t --against none", "no model folder 'none'"),
        ("bench quality model --text t --against model", "model is not packed"),
        ("bench quality model --text none.txt", "text none.txt: No such file"),
        ("bench decode none", "no model folder 'none'"),
        ("bench decode empty", "empty: no model here"),
        ("bench decode gguf", "gguf holds its weights as GGUF files"),
        ("verify empty", "empty: no model here"),
    ],
)
def test_a_wrong_path_is_refused_without_the_engine(miractl: Run, line: str, says: str) -> None:
    result = miractl(*line.split())
    assert result.exit_code in (1, 2)
    assert result.stderr.startswith(f"error: {says}")
