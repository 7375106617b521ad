"""Which shard holds which tensor, and checkpoints that lack something."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from miractl.checkpoint.shards import INDEX, tensor_ranges
from miractl.errors import MiractlError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "one.safetensors")
    save_file({"b": np.ones(3, np.float32)}, tmp_path / "two.safetensors")
    return tmp_path


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_each_tensor_is_found_in_its_own_shard(folder: Path) -> None:
    write_index(folder, {"a": "one.safetensors", "b": "two.safetensors"})
    found = tensor_ranges(folder)
    assert {name: tensor.file.name for name, tensor in found.items()} == {
        "a": "one.safetensors",
        "b": "two.safetensors",
    }


def test_several_shards_without_an_index_are_read_by_their_headers(folder: Path) -> None:
    assert tensor_ranges(folder).keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("weight_map", "says"),
    [
        ({"a": "three.safetensors"}, "three.safetensors is missing"),
        ({"c": "one.safetensors"}, "one.safetensors holds c, but it does not"),
        ({"a": "../one.safetensors"}, "points outside the folder: '../one.safetensors'"),
        ({"a": 1}, "not a map from tensor to file name"),
        ([], "not a map from tensor to file name"),
    ],
)
def test_a_wrong_index_is_one_line(folder: Path, weight_map: object, says: str) -> None:
    write_index(folder, weight_map)
    with pytest.raises(MiractlError) as refused:
        tensor_ranges(folder)
    assert says in refused.value.message


def test_an_unreadable_index_and_an_empty_folder_are_one_line(folder: Path, tmp_path: Path) -> None:
    (folder / INDEX).write_text("{")
    with pytest.raises(MiractlError, match="no readable weight_map"):
        tensor_ranges(folder)
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(MiractlError, match=r"has no \.safetensors files"):
        tensor_ranges(empty)


def test_a_tensor_in_two_files_is_refused(folder: Path) -> None:
    save_file({"a": np.ones(2, np.float32)}, folder / "three.safetensors")
    with pytest.raises(MiractlError, match=r"^a is in one\.safetensors and in three"):
        tensor_ranges(folder)
