"""Safetensors headers: what the format promises, and everything that breaks it."""

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from miractl.checkpoint.header import read_header
from miractl.errors import MiractlError


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_ranges_are_those_that_the_library_wrote(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(5, dtype=np.int64),
        "empty": np.zeros((0, 4), dtype=np.float16),
    }
    save_file(arrays, path := tmp_path / "x.safetensors")
    found = read_header(path)
    assert found.keys() == arrays.keys()
    raw = path.read_bytes()
    for name, array in arrays.items():
        tensor = found[name]
        assert tensor.shape == array.shape
        assert raw[tensor.start : tensor.start + tensor.nbytes] == array.tobytes()


@pytest.mark.parametrize(
    ("header", "data", "says"),
    [
        (b"{", b"", "not valid JSON"),
        (b"[]", b"", "not a JSON object"),
        (b'{"a": 1, "a": 2}', b"", "'a' is there twice"),
        (b"[" * 5000, b"", "not valid JSON"),
        ({"a": 3}, b"", "entry of 'a' is malformed"),
        ({"a": {"dtype": "F32", "shape": [1]}}, b"", "malformed"),
        ({"a": entry(0, 4, [-1])}, b"1234", "malformed"),
        ({"a": entry(0, 4, [1], "F31")}, b"1234", "unknown type 'F31'"),
        ({"a": entry(0, 4, [2])}, b"1234", "needs 8 bytes, its header gives 4"),
        ({"a": entry(0, 8, [2])}, b"1234", "ends at byte"),
        ({"a": entry(0, 4, [1]), "b": entry(0, 4, [1])}, b"1234", "share bytes"),
    ],
)
def test_a_broken_header_is_one_line(tmp_path: Path, header: Any, data: bytes, says: str) -> None:
    path = write(tmp_path / "x.safetensors", header, data)
    with pytest.raises(MiractlError) as refused:
        read_header(path)
    assert says in refused.value.message
    assert "x.safetensors" in refused.value.message
    assert "\n" not in refused.value.message


def test_a_huge_header_length_reads_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {}, length=2**62)
    with pytest.raises(MiractlError, match=r"x\.safetensors ends at byte 10, its header alone"):
        read_header(path)


def test_a_git_lfs_pointer_is_named_with_the_real_size(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4998663696\n")
    with pytest.raises(MiractlError, match="real size 4,998,663,696 bytes") as refused:
        read_header(path)
    assert refused.value.hint == f"cd {tmp_path} && git lfs pull"


def names_the_file_or_reads(path: Path) -> None:
    with contextlib.suppress(MiractlError):
        read_header(path)
        return
    with pytest.raises(MiractlError, match=r"x\.safetensors"):
        read_header(path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=200), length=st.none() | st.integers(0, 2**64 - 1))
def test_random_bytes_never_crash(tmp_path: Path, raw: bytes, length: int | None) -> None:
    path = write(tmp_path / "x.safetensors", raw, length=length)
    names_the_file_or_reads(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F9", None]) | JSON,
        "shape": st.lists(st.integers(-1, 2**40), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 2**40), max_size=3) | JSON,
    }
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.dictionaries(st.text(max_size=4), ENTRIES | JSON, max_size=4))
def test_random_entries_never_crash(tmp_path: Path, header: dict[str, Any]) -> None:
    path = write(tmp_path / "x.safetensors", json.dumps(header).encode(), bytes(64))
    names_the_file_or_reads(path)
