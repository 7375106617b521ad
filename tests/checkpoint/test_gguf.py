"""GGUF is not read, and every command that takes a model says so in one line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from miractl.checkpoint.gguf import refuse_gguf


@pytest.mark.parametrize("command", ["pack", "serve", "inspect", "plan", "verify"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_one_line_and_what_to_do_instead(
    tmp_path: Path, miractl: Callable[..., Result], command: str, kind: str
) -> None:
    model = tmp_path / "model.Q4_K_M.gguf"
    model.write_bytes(b"GGUF")
    path = model if kind == "file" else tmp_path
    more = ("-o", str(tmp_path / "out")) if command == "pack" else ()
    result = miractl(command, str(path), *more)
    assert result.exit_code == 2
    error, hint = result.stderr.strip().splitlines()
    assert "GGUF" in error
    assert "which miractl does not read" in error
    assert "safetensors checkpoint" in hint


def test_a_folder_with_safetensors_beside_it_is_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "model.safetensors").write_bytes(b"")
    refuse_gguf(tmp_path)
    refuse_gguf(tmp_path / "nowhere.gguf")
