"""The header of one safetensors file: names, types, shapes and byte ranges, nothing loaded.

Format: 8 bytes little-endian header length n, n bytes of JSON, then the data; offsets in the JSON
count from the first data byte (https://github.com/huggingface/safetensors, "Format").
"""

import json
import math
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from miractl.errors import MiractlError

DTYPE_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 1),
}
_LFS_POINTER = b"version https://git-lfs"
_PREFIX = 8


@dataclass(frozen=True, slots=True)
class TensorRange:
    """Where one tensor's bytes are: [start, start + nbytes) of `file`, row-major."""

    file: Path
    start: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def read_header(path: Path) -> dict[str, TensorRange]:
    """All tensors of one file. Raises MiractlError that names the file and its fault."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(_PREFIX)
            length = _header_length(path, prefix + file.read(len(_LFS_POINTER)), size)
            file.seek(_PREFIX)
            raw = file.read(length)
    except OSError as error:
        raise MiractlError(f"{path}: {error.strerror or error}") from None
    return _parse(path, raw, size, _PREFIX + length)


def _header_length(path: Path, start: bytes, size: int) -> int:
    if start.startswith(_LFS_POINTER):
        raise MiractlError(
            f"{path.name} is a Git LFS pointer, not the weights{_lfs_size(path)}",
            hint=f"cd {path.parent} && git lfs pull",
        )
    if size < _PREFIX:
        raise MiractlError(f"{path}: {size} bytes is too short for a safetensors file")
    length = int.from_bytes(start[:_PREFIX], "little")
    if length > size - _PREFIX:
        raise MiractlError(
            f"{path.name} ends at byte {size:,}, its header alone needs {_PREFIX + length:,}",
            hint="download the file again",
        )
    return length


def _lfs_size(path: Path) -> str:
    for line in path.read_text(errors="replace").splitlines()[:8]:
        if line.startswith("size ") and line[5:].strip().isdigit():
            return f" (real size {int(line[5:]):,} bytes)"
    return ""


def _parse(path: Path, raw: bytes, size: int, data_start: int) -> dict[str, TensorRange]:
    try:
        entries = json.loads(raw, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise MiractlError(f"{path}: the header is not valid JSON ({error})") from None
    if not isinstance(entries, dict):
        raise MiractlError(f"{path}: the header is not a JSON object")
    entries.pop("__metadata__", None)
    tensors = {
        name: _tensor(path, name, entry, size, data_start) for name, entry in entries.items()
    }
    _refuse_overlaps(path, tensors)
    return tensors


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
    return result


def _tensor(path: Path, name: str, entry: Any, size: int, data_start: int) -> TensorRange:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        whole = isinstance(dtype, str) and all(
            type(n) is int and n >= 0 for n in (*shape, begin, end)
        )
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole:
        raise MiractlError(f"{path}: the header entry of {name!r} is malformed")
    if dtype not in DTYPE_BYTES:
        raise MiractlError(f"{path}: {name} has the unknown type {dtype!r}")
    tensor = TensorRange(path, data_start + begin, dtype, shape)
    if end - begin != tensor.nbytes:
        raise MiractlError(
            f"{path}: {name} {list(shape)} {dtype} needs {tensor.nbytes:,} bytes, "
            f"its header gives {end - begin:,}"
        )
    if data_start + end > size:
        raise MiractlError(
            f"{path.name} ends at byte {size:,}, its header needs {data_start + end:,}",
            hint="download the file again",
        )
    return tensor


def _refuse_overlaps(path: Path, tensors: dict[str, TensorRange]) -> None:
    ordered = sorted(tensors.items(), key=lambda item: (item[1].start, item[1].nbytes))
    for (name, one), (other, two) in pairwise(ordered):
        if one.start + one.nbytes > two.start:
            raise MiractlError(f"{path}: {name} and {other} share bytes")
