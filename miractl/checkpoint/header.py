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

from miractl.checkpoint.faults import FileFaultError
from miractl.checkpoint.regular import refuse_special

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


@dataclass(frozen=True, slots=True)
class Header:
    """What one file says that it holds. `end` > `size`: the file is truncated."""

    tensors: dict[str, TensorRange]
    size: int  # bytes of the file
    end: int  # bytes that the header needs

    def truncation(self, path: Path) -> FileFaultError | None:
        """The fault of a file that ends before its last tensor does."""
        if self.end <= self.size:
            return None
        return FileFaultError(
            "truncated",
            f"{path.name} ends at byte {self.size:,}, its header needs {self.end:,}",
            hint="download the file again",
        )


def read_header(path: Path) -> dict[str, TensorRange]:
    """All tensors of one whole file. Raises MiractlError that names the file and its fault."""
    header = scan_header(path)
    if truncation := header.truncation(path):
        raise truncation
    return header.tensors


def scan_header(path: Path) -> Header:
    """The header of one file, which may be truncated. Raises FileFaultError for any other fault."""
    try:
        refuse_special(path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(_PREFIX)
            length = _header_length(path, prefix + file.read(len(_LFS_POINTER)), size)
            file.seek(_PREFIX)
            raw = file.read(length)
    except OSError as error:
        raise FileFaultError("unreadable", f"{path}: {error.strerror or error}") from None
    tensors = _parse(path, raw, _PREFIX + length)
    end = max((t.start + t.nbytes for t in tensors.values()), default=_PREFIX + length)
    return Header(tensors, size, end)


def _header_length(path: Path, start: bytes, size: int) -> int:
    if start.startswith(_LFS_POINTER):
        raise FileFaultError(
            "lfs-pointer",
            f"{path.name} is a Git LFS pointer, not the weights{_lfs_size(path)}",
            hint=f"cd {path.parent} && git lfs pull",
        )
    if size < _PREFIX:
        raise FileFaultError(
            "truncated", f"{path}: {size} bytes is too short for a safetensors file"
        )
    length = int.from_bytes(start[:_PREFIX], "little")
    if length > size - _PREFIX:
        raise FileFaultError(
            "truncated",
            f"{path.name} ends at byte {size:,}, its header alone needs {_PREFIX + length:,}",
            hint="download the file again",
        )
    return length


def _lfs_size(path: Path) -> str:
    for line in path.read_text(errors="replace").splitlines()[:8]:
        if line.startswith("size ") and line[5:].strip().isdigit():
            return f" (real size {int(line[5:]):,} bytes)"
    return ""


def _parse(path: Path, raw: bytes, data_start: int) -> dict[str, TensorRange]:
    try:
        entries = json.loads(raw, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise FileFaultError("header", f"{path}: the header is not valid JSON ({error})") from None
    if not isinstance(entries, dict):
        raise FileFaultError("header", f"{path}: the header is not a JSON object")
    entries.pop("__metadata__", None)
    tensors = {name: _tensor(path, name, entry, data_start) for name, entry in entries.items()}
    _refuse_overlaps(path, tensors)
    return tensors


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
    return result


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> TensorRange:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        whole = isinstance(dtype, str) and all(
            type(n) is int and n >= 0 for n in (*shape, begin, end)
        )
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole:
        raise FileFaultError("header", f"{path}: the header entry of {name!r} is malformed")
    if dtype not in DTYPE_BYTES:
        raise FileFaultError("header", f"{path}: {name} has the unknown type {dtype!r}")
    tensor = TensorRange(path, data_start + begin, dtype, shape)
    if end - begin != tensor.nbytes:
        raise FileFaultError(
            "header",
            f"{path}: {name} {list(shape)} {dtype} needs {tensor.nbytes:,} bytes, "
            f"its header gives {end - begin:,}",
        )
    return tensor


def _refuse_overlaps(path: Path, tensors: dict[str, TensorRange]) -> None:
    ordered = sorted(tensors.items(), key=lambda item: (item[1].start, item[1].nbytes))
    for (name, one), (other, two) in pairwise(ordered):
        if one.start + one.nbytes > two.start:
            raise FileFaultError("header", f"{path}: {name} and {other} share bytes")
