"""Experts as bytes on disk: where each one lies and how it gets into a slot.

Every published layout (one tensor an expert and projection, or all experts fused in one 3-D tensor,
transposed, interleaved) is described by transformers' own weight converters. Instead of running a
converter at every read, it is run once with addresses as values: what comes out says where each
source element lands in the slot. All known layouts are affine maps, so a source tensor becomes a
`Piece`: a byte range in a file and a strided view of the slot, copied in one pass with its type
converted on the way.
"""

import copy
import math
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from miractl.checkpoint.encoding import PLAIN, StoredTensor
from miractl.checkpoint.header import TensorRange
from miractl.errors import MiractlError
from miractl.plan.chunks import DISK_CHUNK, chunks_of
from miractl.policy.keys import ExpertKey
from miractl.runtime.decode import decode
from miractl.runtime.files import CheckpointFiles
from miractl.runtime.hollow import expert_count, own_parameters
from miractl.runtime.ticket import Course, carry_out

Views = Mapping[str, torch.Tensor]  # parameter name -> [...] view of one slot


@dataclass(frozen=True, slots=True)
class Piece:
    """One stored tensor of one expert and the strided part of a slot's parameter it fills."""

    source: StoredTensor
    parameter: str
    offset: int  # elements from the start of the parameter's slot
    strides: tuple[int, ...]  # elements, one for each axis of source.shape


class ExpertSource(Protocol):
    """Where single experts are read from. Thread-safe."""

    def close(self) -> None:
        """Close the files."""

    def fault(self) -> str | None:
        """Why experts can no longer be read, or None."""

    def stored_bytes(self, key: ExpertKey) -> int:
        """Bytes of one expert on disk."""

    def chunks(self, key: ExpertKey, slot: Views) -> int:
        """Into how many chunks the reading of an expert may be divided, and lose nothing."""

    def course(self, key: ExpertKey, slot: Views, chunks: int) -> Course:
        """Fill a slot with one expert, in so many chunks or fewer; counts the bytes fetched.

        Nothing of the calling thread is in use where it yields. Raises MiractlError.
        """

    def read(self, key: ExpertKey, slot: Views) -> int:
        """Fill a slot with one expert; returns the bytes fetched. Raises MiractlError."""


class CheckpointSource:
    """Experts of a published checkpoint. Each thread has its own read buffers."""

    def __init__(self, files: CheckpointFiles, pieces: dict[ExpertKey, tuple[Piece, ...]]) -> None:
        self.files, self.pieces = files, pieces
        self._buffers = threading.local()

    def close(self) -> None:
        """Close the files."""
        self.files.close()

    def fault(self) -> str | None:
        """Why experts can no longer be read, or None."""
        return self.files.fault()

    def stored_bytes(self, key: ExpertKey) -> int:
        """Bytes of one expert on disk."""
        return sum(piece.source.nbytes for piece in self.pieces[key])

    def chunks(self, key: ExpertKey, slot: Views) -> int:
        """As the protocol says: what is stored apart is read apart."""
        return min(len(self.pieces[key]), chunks_of(self.stored_bytes(key), DISK_CHUNK))

    def read(self, key: ExpertKey, slot: Views) -> int:
        """As the protocol says."""
        return carry_out(self.course(key, slot, 1))

    def course(self, key: ExpertKey, slot: Views, chunks: int) -> Course:
        """As the protocol says."""
        fetched = 0
        for number, piece in enumerate(self.pieces[key]):
            if number and chunks > 1:
                yield fetched
            source, target = piece.source, slot[piece.parameter]
            raw = [self._buffer(part, number) for number, part in enumerate(source.ranges)]
            for buffer, part in zip(raw, source.ranges, strict=True):
                fetched += self.files.read_into(buffer, part)
            place = (source.shape, piece.strides, target.storage_offset() + piece.offset)
            target.as_strided(*place).copy_(decode(source, raw))
        return fetched

    def _buffer(self, part: TensorRange, number: int) -> torch.Tensor:
        """Room for a range in this thread's buffer of that number, until its next use."""
        buffers: dict[Any, torch.Tensor] = vars(self._buffers)
        if number not in buffers or buffers[number].numel() < part.nbytes:
            buffers[number] = torch.empty(part.nbytes, dtype=torch.uint8)
        return buffers[number][: part.nbytes]


class ExpertMap(NamedTuple):
    """Where every expert is, and the names of the checkpoint's tensors that hold experts."""

    pieces: dict[ExpertKey, tuple[Piece, ...]]
    names: frozenset[str]


def map_experts(
    model: PreTrainedModel,
    config: PreTrainedConfig,
    tensors: Mapping[str, StoredTensor],
    modules: list[str],
) -> ExpertMap:
    """Pieces of every expert of `modules` (names of experts modules, in layer order).

    `model` is a stock model on the meta device. Raises MiractlError when an expert is incomplete
    or its layout is not understood.
    """
    sources = _sources(model, tensors, set(modules))
    convert = {"model": model, "config": config}
    layouts: dict[tuple[Any, ...], list[_Placement]] = {}  # layers and experts share theirs
    pieces: dict[ExpertKey, tuple[Piece, ...]] = {}
    for layer, name in enumerate(modules):
        shapes = {p: tuple(t.shape[1:]) for p, t in own_parameters(model.get_submodule(name))}
        if missing := shapes.keys() - sources[name].keys():
            raise MiractlError(f"the checkpoint has no tensor for {name}.{min(missing)}")
        count = expert_count(model.get_submodule(name))
        for expert in range(count):
            own: list[Piece] = []
            for parameter, source in sources[name].items():
                target = f"{name}.{parameter}"
                parts = source.parts(expert, count, target)
                layout = (parameter, *((part.pattern, part.tensor.shape) for part in parts))
                if layout not in layouts:
                    layouts[layout] = _placements(
                        source.converter, target, parts, shapes[parameter], convert
                    )
                places = zip(parts, layouts[layout], strict=True)
                own += [Piece(part.tensor, parameter, *place) for part, place in places]
            pieces[ExpertKey(layer, expert)] = tuple(own)
    names = (n for own in sources.values() for source in own.values() for n in source.names)
    return ExpertMap(pieces, frozenset(names))


class _Placement(NamedTuple):
    offset: int
    strides: tuple[int, ...]


class _Part(NamedTuple):
    """One source tensor of one expert: its own, or its slice of a tensor that fuses all."""

    pattern: str
    tensor: StoredTensor
    fused: bool


class _Source:
    """The checkpoint tensors behind one fused parameter, by pattern, and their converter."""

    def __init__(self, converter: WeightConverter | None) -> None:
        self.converter = converter
        self.tensors: dict[str, list[StoredTensor]] = defaultdict(list)
        self.names: list[str] = []

    def parts(self, expert: int, count: int, name: str) -> list[_Part]:
        """The parts of one expert of `count`."""
        found = []
        for pattern, tensors in self.tensors.items():
            if len(tensors) == count:
                found.append(_Part(pattern, tensors[expert], fused=False))
            elif len(tensors) == 1 and tensors[0].shape[0] == count:
                found.append(_Part(pattern, tensors[0].item(expert), fused=True))
            else:
                raise MiractlError(
                    f"{name} has {count} experts, the checkpoint holds {len(tensors)} of {pattern}"
                )
        return found


def _sources(
    model: PreTrainedModel, tensors: Mapping[str, StoredTensor], modules: set[str]
) -> dict[str, dict[str, _Source]]:
    """{module: {parameter: source}} by transformers' own renaming of checkpoint keys."""
    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: c for c in converters for pattern in c.source_patterns}
    state = model.state_dict()
    sources: dict[str, dict[str, _Source]] = defaultdict(dict)
    for key in sorted(tensors, key=dot_natural_key):
        target, pattern = rename_source_key(
            key, renamings, converters, model.base_model_prefix, state
        )
        module, _, parameter = target.rpartition(".")
        if module not in modules:
            continue
        dtype = tensors[key].ranges[0].dtype
        if tensors[key].encoding == "plain" and dtype not in PLAIN:
            raise MiractlError(f"{key} is stored as {dtype}; plain experts are {', '.join(PLAIN)}")
        source = sources[module].setdefault(parameter, _Source(by_pattern.get(pattern or "")))
        source.tensors[pattern or parameter].append(tensors[key])
        source.names.append(key)
    return sources


def _placements(
    converter: WeightConverter | None,
    target: str,
    parts: list[_Part],
    shape: tuple[int, ...],
    convert: dict[str, Any],
) -> list[_Placement]:
    """Where each part lands in a parameter's slot of `shape`, found by converting addresses."""
    addresses: list[torch.Tensor] = []
    total = 0
    for part in parts:
        size = math.prod(part.tensor.shape)
        numbers = torch.arange(total, total + size, dtype=torch.int32)
        addresses.append(numbers.view(part.tensor.shape))
        total += size
    landed = addresses[0]
    if parts[0].tensor.encoding == "mxfp4":
        # Packed along the inputs of a projection; the model has them the other way round.
        landed = landed.T
    elif converter is not None:
        once = copy.deepcopy(converter)  # it collects tensors: each use needs a fresh one
        for part, values in zip(parts, addresses, strict=True):
            tensor: Any = values[None] if part.fused else values
            once.add_tensor(target, target, part.pattern, tensor)
        result = once.convert(target, **convert)[target]
        landed = result[0] if isinstance(result, list) else result
    if landed.dim() == len(shape) + 1:
        landed = landed[0]
    if landed.numel() != total or tuple(landed.shape) != shape:
        raise MiractlError(
            f"{target} is {list(shape)} an expert, the checkpoint gives {list(landed.shape)}"
        )
    flat = landed.reshape(-1)
    return [_affine(flat, numbers, target) for numbers in addresses]


def _affine(landed: torch.Tensor, numbers: torch.Tensor, target: str) -> _Placement:
    """Offset and strides at which the slot's elements `landed` [n] hold a part's `numbers`."""

    def position(index: tuple[int, ...]) -> int:
        return int((landed == numbers[index]).nonzero()[0, 0])

    zero = (0,) * numbers.dim()
    origin = position(zero)
    strides = tuple(
        position((*zero[:axis], 1, *zero[axis + 1 :])) - origin if size > 1 else 0
        for axis, size in enumerate(numbers.shape)
    )
    last = origin + sum((n - 1) * step for n, step in zip(numbers.shape, strides, strict=True))
    affine = min(strides) >= 0 and last < len(landed)
    if not affine or not torch.equal(landed.as_strided(numbers.shape, strides, origin), numbers):
        raise MiractlError(f"the layout of {target} is not one this version can read")
    return _Placement(origin, strides)
