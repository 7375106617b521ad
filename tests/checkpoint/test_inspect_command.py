"""`miractl inspect`: the sheet, JSON and exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from tests.checkpoint import tiny
from tests.checkpoint.published import MODELS

Run = Callable[..., Result]


def config_only(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    (path / "config.json").write_text(json.dumps(MODELS[name].config))
    return path


def test_the_sheet_of_a_config(
    miractl: Run, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    texts = []
    for name in ("Jamba-Mini-1.6", "gpt-oss-20b", "DeepSeek-V2-Lite"):
        result = miractl("inspect", str(config_only(tmp_path, name)))
        assert result.exit_code == 0
        texts.append(result.stdout.replace(str(tmp_path), "."))
    golden("inspect.txt", "\n\n".join(texts))


def test_a_whole_checkpoint(miractl: Run, tmp_path: Path) -> None:
    result = miractl("inspect", str(tiny.write(tmp_path, tiny.tensors())))
    assert result.exit_code == 0
    assert "the headers of the shards" in result.stdout
    assert "model-00002-of-00002.safetensors" in result.stdout
    assert "no fault is in the way" in result.stdout


def test_a_fault_is_shown_with_its_remedy_and_ends_with_1(miractl: Run, tmp_path: Path) -> None:
    held = tiny.tensors()
    del held["lm_head.weight"]
    result = miractl("inspect", str(tiny.write(tmp_path, held)))
    assert result.exit_code == 1
    assert "lm_head.weight is missing and tie_word_embeddings is false" in result.stdout
    assert "set tie_word_embeddings to true" in result.stdout


def test_json(miractl: Run, tmp_path: Path) -> None:
    held = tiny.tensors()
    del held["lm_head.weight"]
    result = miractl("inspect", str(tiny.write(tmp_path, held)), "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["schema"], found["usable"]) == ("miractl.inspect/1", False)
    assert found["geometry"]["moe_layers"] == [0, 1, 2]
    assert found["geometry"]["bytes_per_expert"] == tiny.EXPERT_BYTES
    assert found["geometry"]["expert_shapes"]["down_proj"] == [tiny.HIDDEN, tiny.INNER]
    assert [fault["code"] for fault in found["faults"]] == ["missing-head"]
    assert sum(shard["tensors"] for shard in found["shards"]) == len(held)


def test_what_is_no_model_is_one_line(miractl: Run, tmp_path: Path) -> None:
    result = miractl("inspect", str(tmp_path))
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 1
    assert "config.json: No such file" in result.stdout
    assert miractl("inspect", str(tmp_path / "nothing")).exit_code == 2
