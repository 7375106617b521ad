"""A packed folder: one record an expert, in one file, and a manifest that says what a record is.

docs/packed.md is normative. Nothing here reads weights, but for `wrong_hashes`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from miractl.checkpoint.faults import Fault, FileFaultError
from miractl.checkpoint.record import Record, record_from_json, record_to_json
from miractl.errors import MiractlError
from miractl.native.layout import RECORD_ALIGNMENT, Format, MatrixShape

MANIFEST, RECORDS, DIGESTS = "manifest.json", "experts.bin", "experts.sha256"
DENSE = "dense.safetensors"
FORMAT = 2
READABLE = (1, FORMAT)  # version 1 does not tell the activation
AS_IS = "as-is"
KINDS = (AS_IS, "int8", "int4")
DIGEST_BYTES = 32
_CHUNK = 1 << 24
_AGAIN = "pack the model again"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a packed folder says of itself. `layers` are the real indices of those with experts."""

    folder: Path
    kind: str
    layers: tuple[int, ...]
    experts: int
    record: Record
    source: Mapping[str, Any]
    files: Mapping[str, str]  # name -> sha256; the records' digests are in DIGESTS
    dense: Mapping[str, MatrixShape] = field(default_factory=dict)  # int8 blocks in DENSE, by name

    @property
    def count(self) -> int:
        """Records of the folder."""
        return len(self.layers) * self.experts

    @property
    def nbytes(self) -> int:
        """Bytes of all records."""
        return self.count * self.record.nbytes

    def offset(self, layer: int, expert: int) -> int:
        """First byte of a record; `layer` counts the layers with experts."""
        return (layer * self.experts + expert) * self.record.nbytes

    def to_json(self) -> dict[str, Any]:
        """Plain data, as in the file."""
        return {
            "format": "miractl.packed",
            "version": FORMAT,
            "kind": self.kind,
            "layers": list(self.layers),
            "experts": self.experts,
            "record": record_to_json(self.record),
            "dense": dense_to_json(self.dense),
            "source": dict(self.source),
            "files": dict(self.files),
        }


def dense_to_json(dense: Mapping[str, MatrixShape]) -> dict[str, Any]:
    """The shapes of int8 matrices as plain data."""
    return {
        name: {"group": shape.format.group, "rows": shape.rows, "columns": shape.columns}
        for name, shape in sorted(dense.items())
    }


def _matrix(data: Mapping[str, Any]) -> MatrixShape:
    return MatrixShape(Format("i8", data["group"]), data["rows"], data["columns"])


def is_packed(folder: Path) -> bool:
    """Whether a folder calls itself packed."""
    return (folder / MANIFEST).is_file()


def refuse_packing(folder: Path, target: Path) -> None:
    """Raise MiractlError for a target that is there, and for a folder that is packed already."""
    if target.exists() or target.is_symlink():
        raise MiractlError(f"{target} is there already", hint="name a folder that is not there")
    if is_packed(folder):
        raise MiractlError(f"{folder} is packed already", hint="pack the checkpoint it came from")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a packed folder. Raises FileFaultError for one that cannot be used."""
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("format") != "miractl.packed" or data.get("version") not in READABLE:
            told = f"{data.get('format')!r} of version {data.get('version')!r}"
            versions = " and ".join(map(str, READABLE))
            text = f"{path}: this miractl reads versions {versions}, got {told}"
            raise FileFaultError("manifest", text, hint=_AGAIN)
        manifest = Manifest(
            folder=folder,
            kind=str(data["kind"]),
            layers=tuple(map(int, data["layers"])),
            experts=int(data["experts"]),
            record=record_from_json(folder / RECORDS, data["record"]),
            source=dict(data["source"]),
            files={str(name): str(digest) for name, digest in data["files"].items()},
            dense={name: _matrix(told) for name, told in data.get("dense", {}).items()},
        )
    except OSError as error:
        raise FileFaultError("manifest", f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        text = f"{path}: not a manifest ({type(error).__name__}: {error})"
        raise FileFaultError("manifest", text, hint=_AGAIN) from None
    _check(path, manifest)
    return manifest


def _check(path: Path, manifest: Manifest) -> None:
    """What would read outside a record or a file is refused here, once."""
    record = manifest.record
    ends = [r.start + r.nbytes for part in record.parts for r in part.tensor.ranges]
    starts = [r.start for part in record.parts for r in part.tensor.ranges]
    sound = (
        manifest.kind in KINDS
        and (manifest.kind == AS_IS) == (record.quantized is None)
        and manifest.count > 0
        and 0 < record.used <= record.nbytes
        and record.nbytes % RECORD_ALIGNMENT == 0
        and max(ends, default=record.used) <= record.used
        and min(starts, default=0) >= 0
        and (record.quantized is None or record.quantized.shape.nbytes == record.used)
        and (record.quantized is not None or bool(record.parts))
    )
    if not sound:
        raise FileFaultError("manifest", f"{path}: its numbers contradict each other", hint=_AGAIN)


def missing_bytes(manifest: Manifest) -> Iterator[Fault]:
    """Files of a packed folder that are not there or have another size than the manifest needs."""
    for name in sorted({RECORDS, DIGESTS, *manifest.files}):
        path = manifest.folder / name
        if not path.is_file():
            yield Fault("missing-file", f"{name} is missing in {manifest.folder}", names=(name,))
            continue
        size = path.stat().st_size
        wanted = {RECORDS: manifest.nbytes, DIGESTS: manifest.count * DIGEST_BYTES}.get(name, size)
        if size != wanted:
            text = f"{name} has {size:,} bytes, the manifest needs {wanted:,}"
            yield Fault("truncated", text, _AGAIN, names=(name,))


def wrong_hashes(manifest: Manifest) -> Iterator[Fault]:
    """Read everything and compare: one fault a file, or a record, whose bytes are not its hash's.

    The files have to be there in full: `missing_bytes` comes first.
    """
    for name, expected in sorted(manifest.files.items()):
        if hash_file(manifest.folder / name) != expected:
            yield Fault("hash", f"{name} is not what was packed", _AGAIN, names=(name,))
    digests = (manifest.folder / DIGESTS).read_bytes()
    with (manifest.folder / RECORDS).open("rb") as file:
        for number in range(manifest.count):
            found = hashlib.sha256(file.read(manifest.record.nbytes)).digest()
            if found != digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]:
                layer, expert = divmod(number, manifest.experts)
                where = f"expert {expert} of layer {manifest.layers[layer]}"
                yield Fault("hash", f"{where} is not what was packed", _AGAIN, names=(RECORDS,))


def hash_file(path: Path) -> str:
    """The sha256 of a file in hexadecimal."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            total.update(chunk)
    return total.hexdigest()


def describe(manifest: Manifest) -> str:
    """The layout in words."""
    quantized = manifest.record.quantized
    dense = ", attention and head as int8" if manifest.dense else ""
    if quantized is None:
        kinds = sorted({r.dtype for p in manifest.record.parts for r in p.tensor.ranges})
        return f"packed as-is ({', '.join(kinds)}){dense}"
    stored = quantized.shape.format
    return f"packed as {manifest.kind} ({stored.name}, groups of {stored.group}){dense}"
