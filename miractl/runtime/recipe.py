"""How an expert of a checkpoint becomes a record: copied as it is, or quantised for the kernels."""

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from miractl.checkpoint.encoding import StoredTensor
from miractl.checkpoint.header import TensorRange
from miractl.checkpoint.packed import AS_IS, RECORDS
from miractl.checkpoint.record import Part, Quantized, Record
from miractl.errors import MiractlError
from miractl.native import available, quantize, reference
from miractl.native.layout import (
    BLOCK_ALIGNMENT,
    RECORD_ALIGNMENT,
    ExpertShape,
    Format,
    MatrixShape,
)
from miractl.policy.keys import ExpertKey
from miractl.runtime.activation import Formula, find_formula
from miractl.runtime.decode import TORCH_DTYPES
from miractl.runtime.hollow import BATCHED
from miractl.runtime.outline import Outline
from miractl.runtime.packed import rows_in_slot
from miractl.runtime.source import CheckpointSource, Piece

Bytes = NDArray[np.uint8]
_NOWHERE = Path(RECORDS)  # a record's ranges count from its start
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
FORMATS = {"int8": "i8", "int4": "i4k"}
GROUPS = {"i8": (128, 64, 32), "i4k": (32,)}  # larger groups take fewer bytes


class Recipe(Protocol):
    """Makes records of one layout. Thread-safe."""

    record: Record

    def fill(self, key: ExpertKey, block: Bytes) -> None:
        """Write one expert to zeroed memory, uint8 [record.nbytes]. Raises MiractlError."""


def make_recipe(kind: str, outline: Outline, source: CheckpointSource) -> Recipe:
    """The recipe of a kind. Raises MiractlError for experts that cannot be packed like that."""
    if kind != AS_IS:
        return _Quantizing(_quantized(kind, outline), outline, source)
    encodings = {p.source.encoding for pieces in source.pieces.values() for p in pieces}
    return _Plain(outline, source) if encodings == {"plain"} else _Coded(source)


def _padded(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


class _Plain:
    """Plain numbers, put in the order of the slot: what is read is what is computed with."""

    def __init__(self, outline: Outline, source: CheckpointSource) -> None:
        self._source = source
        parts, end = [], 0
        for name, shape in outline.shapes.items():
            dtype = _common_dtype(source, name)
            at = _padded(end, BLOCK_ALIGNMENT)
            place = TensorRange(_NOWHERE, at, DTYPE_NAMES[dtype], shape)
            end = at + place.nbytes
            strides = torch.empty(shape, device="meta").stride()
            parts.append(Part(StoredTensor("plain", shape, (place,)), name, 0, tuple(strides)))
        self.record = Record(_padded(end, RECORD_ALIGNMENT), end, tuple(parts))

    def fill(self, key: ExpertKey, block: Bytes) -> None:
        """As the protocol says."""
        whole, slot = torch.from_numpy(block), {}
        for part in self.record.parts:
            place = part.tensor.ranges[0]
            raw = whole[place.start : place.start + place.nbytes]
            slot[part.parameter] = raw.view(TORCH_DTYPES[place.dtype]).view(place.shape)
        self._source.read(key, slot)


def _common_dtype(source: CheckpointSource, parameter: str) -> torch.dtype:
    """The type that holds the numbers of all experts without a loss."""
    names = {
        part.dtype
        for pieces in source.pieces.values()
        for piece in pieces
        if piece.parameter == parameter
        for part in piece.source.ranges
    }
    dtypes = [TORCH_DTYPES[name] for name in sorted(names)]
    common = dtypes[0]
    for dtype in dtypes[1:]:
        common = torch.promote_types(common, dtype)
    return common


class _Coded:
    """Codes and scales as they are stored, one after the other."""

    def __init__(self, source: CheckpointSource) -> None:
        self._source = source
        first, *others = source.pieces.values()
        layout = _layout(first)
        if any(_layout(pieces) != layout for pieces in others):
            raise MiractlError(
                "experts are stored in several types, so their records would differ",
                hint="pack them with --experts int8",
            )
        parts, end = [], 0
        for piece in first:
            ranges = []
            for part in piece.source.ranges:
                at = _padded(end, BLOCK_ALIGNMENT)
                ranges.append(TensorRange(_NOWHERE, at, part.dtype, part.shape))
                end = at + part.nbytes
            own = piece.source
            tensor = StoredTensor(own.encoding, own.shape, tuple(ranges), own.block)
            parts.append(Part(tensor, piece.parameter, piece.offset, piece.strides))
        self.record = Record(_padded(end, RECORD_ALIGNMENT), end, tuple(parts))

    def fill(self, key: ExpertKey, block: Bytes) -> None:
        """As the protocol says."""
        whole = torch.from_numpy(block)
        for piece, part in zip(self._source.pieces[key], self.record.parts, strict=True):
            for stored, place in zip(piece.source.ranges, part.tensor.ranges, strict=True):
                target = whole[place.start : place.start + place.nbytes]
                self._source.files.read_into(target, stored)


def _layout(pieces: tuple[Piece, ...]) -> list[tuple[object, ...]]:
    """What has to be the same for all experts, which is everything but where they lie."""
    layout: list[tuple[object, ...]] = []
    for piece in pieces:
        own = piece.source
        layout.append((piece.parameter, piece.offset, piece.strides))
        layout.append((own.encoding, own.shape, own.block))
        layout += [(part.dtype, part.shape) for part in own.ranges]
    return layout


def _quantized(kind: str, outline: Outline) -> Quantized:
    """What the records of `int8` or `int4` are. Raises MiractlError where the kernels cannot."""
    module = outline.model.get_submodule(outline.modules[0])
    gated = bool(getattr(module, "has_gate", True))
    # Classes outside the experts interface set no flags; Llama 4's holds its experts transposed.
    transposed = bool(getattr(module, "is_transposed", type(module).__name__ == BATCHED))
    first = "gate_up_proj" if gated else "up_proj"
    known = {first, "down_proj"}
    biases = {f"{first}_bias", "down_proj_bias"}
    names, family = set(outline.shapes), outline.config.model_type
    if names not in (known, known | biases):
        raise MiractlError(
            f"the experts of {family} hold {', '.join(sorted(names))}: not what the kernels know",
            hint="pack them with --experts as-is",
        )
    down = outline.shapes["down_proj"]
    hidden, inner = (down[1], down[0]) if transposed else (down[0], down[1])
    name = FORMATS[kind]
    group = next((g for g in GROUPS[name] if hidden % g == 0 and inner % g == 0), None)
    if group is None:
        raise MiractlError(
            f"experts of {family} are {hidden} x {inner}: {kind} needs multiples of 32",
            hint="pack them with --experts as-is",
        )
    formula = _formula(outline, gated)
    shape = ExpertShape(
        *(Format(name, group), hidden, inner),
        gated=gated,
        biased=names != known,
        **({} if formula is None else asdict(formula)),
    )
    interleaved = not getattr(module, "is_concatenated", True)
    return Quantized(shape, transposed, interleaved, computable=formula is not None)


def _formula(outline: Outline, gated: bool) -> Formula | None:
    """What all experts of a model do between their matrices; None if the kernels do not do it."""
    modules = [outline.model.get_submodule(name) for name in outline.modules]
    if any(getattr(module, "has_post_expert_norm", False) for module in modules):
        return None
    formulas = {find_formula(module, is_gated=gated) for module in modules}
    return formulas.pop() if len(formulas) == 1 else None


class _Quantizing:
    """Numbers to codes, gate rows before up rows, whatever their order in the model."""

    def __init__(self, quantized: Quantized, outline: Outline, source: CheckpointSource) -> None:
        self._quantized, self._shapes, self._source = quantized, outline.shapes, source
        self._slots = threading.local()
        shape = quantized.shape
        self.record = Record(shape.record_bytes, shape.nbytes, quantized=quantized)

    def fill(self, key: ExpertKey, block: Bytes) -> None:
        """As the protocol says."""
        shape, slot = self._quantized.shape, self._slot()
        self._source.read(key, slot)
        first, down = self._quantized.first, slot["down_proj"]
        pairs = (
            (torch.cat(rows_in_slot(self._quantized, slot[first])), shape.gate_up),
            (down.T if self._quantized.transposed else down, shape.down),
        )
        what, at = f"expert {key.expert} of MoE layer {key.layer}", 0
        for weights, matrix in pairs:
            block[at : at + matrix.nbytes] = codes(what, weights, matrix)
            at += matrix.nbytes
        if shape.biased:
            rows = torch.cat(rows_in_slot(self._quantized, slot[f"{first}_bias"]))
            biases = torch.cat([rows, slot["down_proj_bias"]]).numpy()
            block[at : at + biases.nbytes] = biases.view(np.uint8)

    def _slot(self) -> dict[str, torch.Tensor]:
        """This thread's numbers of one expert, float32."""
        if not hasattr(self._slots, "slot"):
            self._slots.slot = {name: torch.empty(shape) for name, shape in self._shapes.items()}
        slot: dict[str, torch.Tensor] = self._slots.slot
        return slot


def codes(what: str, weights: torch.Tensor, shape: MatrixShape) -> Bytes:
    """The block of float32 weights. Raises MiractlError for weights that are not finite."""
    numbers = np.ascontiguousarray(weights.numpy())
    if not np.isfinite(numbers).all():
        raise MiractlError(f"{what} has weights that are not finite")
    return quantize(numbers, shape) if available() else reference.quantize(numbers, shape)
