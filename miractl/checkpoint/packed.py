"""A packed folder: one record an expert, in one file, and a manifest that says what a record is.

docs/packed.md is normative. Nothing here reads weights, but for `wrong_hashes`.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miractl.checkpoint.encoding import StoredTensor
from miractl.checkpoint.faults import Fault, FileFaultError
from miractl.checkpoint.header import DTYPE_BYTES, TensorRange
from miractl.native import why_not
from miractl.native.layout import RECORD_ALIGNMENT, Activation, ExpertShape, Format

MANIFEST, RECORDS, DIGESTS = "manifest.json", "experts.bin", "experts.sha256"
FORMAT = 2
READABLE = (1, FORMAT)  # version 1 does not tell the activation
AS_IS = "as-is"
KINDS = (AS_IS, "int8", "int4")
DIGEST_BYTES = 32
_CHUNK = 1 << 24
_AGAIN = "pack the model again"


@dataclass(frozen=True, slots=True)
class Part:
    """Stored numbers of one expert and the strided part of a slot's parameter that they fill.

    The ranges count from the start of the record. `offset` and `strides` are elements of the slot.
    """

    tensor: StoredTensor
    parameter: str
    offset: int
    strides: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the stored bytes are, in order, those of the slot's parameter."""
        step, expected = 1, []
        for size in reversed(self.tensor.shape):
            expected.append(step)
            step *= size
        pairs = zip(self.tensor.shape, self.strides, reversed(expected), strict=True)
        ordered = all(size == 1 or mine == wanted for size, mine, wanted in pairs)
        return self.tensor.encoding == "plain" and self.offset == 0 and ordered


@dataclass(frozen=True, slots=True)
class Quantized:
    """An expert in the layout of the CPU kernels, and how it lies in a slot of the model.

    `transposed`: the slot holds [in, out]; `interleaved`: its rows are gate 0, up 0, gate 1, ...
    `computable`: the kernels know the activation, and `shape` has it; else only numbers come of it.
    """

    shape: ExpertShape
    transposed: bool
    interleaved: bool
    computable: bool = False

    @property
    def first(self) -> str:
        """Name of the slot's first parameter."""
        return "gate_up_proj" if self.shape.gated else "up_proj"


@dataclass(frozen=True, slots=True)
class Record:
    """What one expert's bytes are; the same for all experts. `parts` or `quantized`."""

    nbytes: int  # a multiple of 4,096
    used: int  # bytes before the padding
    parts: tuple[Part, ...] = ()
    quantized: Quantized | None = None


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
            "source": dict(self.source),
            "files": dict(self.files),
        }


def record_to_json(record: Record) -> dict[str, Any]:
    """A record's layout as plain data."""
    facts: dict[str, Any] = {"bytes": record.nbytes, "used": record.used}
    if record.quantized is None:
        return {**facts, "parts": [_part_to_json(part) for part in record.parts]}
    shape = record.quantized.shape
    return {
        **facts,
        "expert": {
            "format": shape.format.name,
            "group": shape.format.group,
            **{name: getattr(shape, name) for name in ("hidden", "inner", "gated", "biased")},
            "transposed": record.quantized.transposed,
            "interleaved": record.quantized.interleaved,
            "activation": _activation_to_json(shape) if record.quantized.computable else None,
        },
    }


def _activation_to_json(shape: ExpertShape) -> dict[str, Any]:
    return {
        "name": shape.activation.name.lower(),
        "slope": shape.slope,
        "limit": None if math.isinf(shape.limit) else shape.limit,
        "shift": shape.shift,
    }


def _part_to_json(part: Part) -> dict[str, Any]:
    tensor = part.tensor
    ranges = [{"at": r.start, "dtype": r.dtype, "shape": list(r.shape)} for r in tensor.ranges]
    return {
        "parameter": part.parameter,
        "encoding": tensor.encoding,
        "shape": list(tensor.shape),
        "block": list(tensor.block),
        "offset": part.offset,
        "strides": list(part.strides),
        "ranges": ranges,
    }


def why_decoded(record: Record, device: str) -> str | None:
    """Why codes become numbers on arrival on a device of this type; None if they are computed from.

    Only for records in the kernels' layout.
    """
    assert record.quantized is not None
    if device != "cpu":
        return f"the kernels run on the CPU, not on {device}"
    if not record.quantized.computable:
        return "the manifest tells no activation that the kernels have"
    return why_not()


def is_packed(folder: Path) -> bool:
    """Whether a folder calls itself packed."""
    return (folder / MANIFEST).is_file()


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
            record=_record(folder / RECORDS, data["record"]),
            source=dict(data["source"]),
            files={str(name): str(digest) for name, digest in data["files"].items()},
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


def _record(file: Path, data: Mapping[str, Any]) -> Record:
    nbytes, used = int(data["bytes"]), int(data["used"])
    if "expert" not in data:
        return Record(nbytes, used, tuple(_part(file, part) for part in data["parts"]))
    expert = data["expert"]
    told = expert.get("activation")
    shape = ExpertShape(
        Format(expert["format"], expert["group"]),
        *(expert["hidden"], expert["inner"]),
        gated=bool(expert["gated"]),
        biased=bool(expert["biased"]),
        **({} if told is None else _activation(told)),
    )
    flags = bool(expert["transposed"]), bool(expert["interleaved"]), told is not None
    return Record(nbytes, used, quantized=Quantized(shape, *flags))


def _activation(data: Mapping[str, Any]) -> dict[str, Any]:
    limit = data["limit"]
    return {
        "activation": Activation[data["name"].upper()],
        "slope": float(data["slope"]),
        "limit": math.inf if limit is None else float(limit),
        "shift": float(data["shift"]),
    }


def _part(file: Path, data: Mapping[str, Any]) -> Part:
    ranges = []
    for each in data["ranges"]:
        if each["dtype"] not in DTYPE_BYTES:
            raise ValueError(f"unknown type {each['dtype']!r}")
        ranges.append(TensorRange(file, int(each["at"]), each["dtype"], tuple(each["shape"])))
    rows, columns = data["block"]
    tensor = StoredTensor(data["encoding"], tuple(data["shape"]), tuple(ranges), (rows, columns))
    return Part(tensor, str(data["parameter"]), int(data["offset"]), tuple(data["strides"]))


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
    if quantized is None:
        kinds = sorted({r.dtype for p in manifest.record.parts for r in p.tensor.ranges})
        return f"packed as-is ({', '.join(kinds)})"
    stored = quantized.shape.format
    return f"packed as {manifest.kind} ({stored.name}, groups of {stored.group})"
