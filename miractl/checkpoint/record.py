"""What one expert's bytes are in a packed folder: stored numbers, or codes for the CPU kernels."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miractl.checkpoint.encoding import StoredTensor
from miractl.checkpoint.header import DTYPE_BYTES, TensorRange
from miractl.native import why_not
from miractl.native.layout import Activation, ExpertShape, Format


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


def record_from_json(file: Path, data: Mapping[str, Any]) -> Record:
    """Undo `record_to_json`; ranges are in `file`. Raises ValueError, KeyError, TypeError."""
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
