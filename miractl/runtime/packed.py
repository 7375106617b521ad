"""Experts of a packed folder: one read an expert, straight into the slot where it is stored alike.

A slot that holds records gets the record. Others get numbers: records in the kernels' layout are
decoded on arrival, here or, where they are copied on to a GPU, there.
"""

import math
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from miractl.checkpoint.packed import RECORDS, Manifest
from miractl.checkpoint.record import Part, Quantized, Record
from miractl.native import available, dequantize, reference
from miractl.native.layout import RECORD_ALIGNMENT, MatrixShape
from miractl.native.memory import aligned_empty
from miractl.plan.chunks import DISK_CHUNK, chunks_of
from miractl.policy.keys import ExpertKey
from miractl.probe.direct_file import PAGE
from miractl.runtime.arena import Shapes
from miractl.runtime.decode import TORCH_DTYPES, decode
from miractl.runtime.files import CheckpointFiles
from miractl.runtime.source import Views
from miractl.runtime.ticket import Course, carry_out

Bytes = NDArray[np.uint8]
RECORD = "record"  # the one part of a slot that holds records, uint8 [record.nbytes]


class PackedSource:
    """Reads single experts. Each thread has its own buffer of one record."""

    def __init__(self, manifest: Manifest, files: CheckpointFiles) -> None:
        self._manifest, self._path = manifest, manifest.folder / RECORDS
        self._files = files
        self._buffers = threading.local()

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def fault(self) -> str | None:
        """Why experts can no longer be read, or None."""
        return self._files.fault()

    def stored_bytes(self, key: ExpertKey) -> int:
        """Bytes of one record."""
        return self._manifest.record.nbytes

    def chunks(self, key: ExpertKey, slot: Views) -> int:
        """Into how many chunks a record is divided; one that is converted is read whole."""
        size = self._manifest.record.nbytes
        return chunks_of(size, DISK_CHUNK) if self._in_place(slot) else 1

    def read(self, key: ExpertKey, slot: Views) -> int:
        """Fill a slot with one expert; returns the bytes fetched. Raises MiractlError."""
        return carry_out(self.course(key, slot, 1))

    def course(self, key: ExpertKey, slot: Views, chunks: int) -> Course:
        """The same, in so many chunks or fewer."""
        record, start = self._manifest.record, self._manifest.offset(*key)
        if buffers := self._in_place(slot):
            fetched = 0
            for at, part in _divided(buffers, chunks):
                if at:
                    yield fetched
                fetched += self._files.scatter(part, self._path, start + at)
            return fetched
        raw = self._buffer()
        fetched = self._files.scatter([torch.from_numpy(raw)], self._path, start)
        if record.quantized is None:
            _place(record.parts, raw, slot)
        else:
            fill_slot(record.quantized, torch.from_numpy(raw), slot)
        return fetched

    def _in_place(self, slot: Views) -> list[torch.Tensor]:
        """The memory that a record is read into as it is; empty where it has to be converted."""
        if RECORD in slot:
            return [slot[RECORD]]
        record = self._manifest.record
        return [] if record.quantized is not None else _in_place(record.parts, slot)

    def _buffer(self) -> Bytes:
        if not hasattr(self._buffers, "record"):
            self._buffers.record = aligned_empty(self._manifest.record.nbytes, RECORD_ALIGNMENT)
        buffer: Bytes = self._buffers.record
        return buffer


def fits(record: Record, shapes: Shapes) -> bool:
    """Whether a record fills slots of these shapes and nothing beside them."""
    if record.quantized is not None:
        shape, transposed = record.quantized.shape, record.quantized.transposed
        sizes = {record.quantized.first: shape.gate_up, "down_proj": shape.down}
        wanted = {name: (m.rows, m.columns) for name, m in sizes.items()}
        matrices = {n: (s[::-1] if transposed else s) for n, s in shapes.items() if len(s) == 2}
        return matrices == wanted and (len(shapes) > 2) == shape.biased
    ends = {name: math.prod(shape) for name, shape in shapes.items()}
    inside = all(
        len(part.strides) == len(part.tensor.shape)
        and min((part.offset, *part.strides)) >= 0
        and part.offset + sum(map(_reach, part.tensor.shape, part.strides)) < ends[part.parameter]
        for part in record.parts
        if part.parameter in ends
    )
    return inside and {part.parameter for part in record.parts} == shapes.keys()


def _reach(size: int, stride: int) -> int:
    return (size - 1) * stride


def _in_place(parts: tuple[Part, ...], slot: Views) -> list[torch.Tensor]:
    """The slot's own memory, with what lies between the parts; empty if it cannot be read into."""
    buffers: list[torch.Tensor] = []
    end = 0
    for part in parts:
        target, source = slot[part.parameter], part.tensor.ranges[0]
        alike = part.is_whole and target.dtype == TORCH_DTYPES[source.dtype]
        if not (alike and target.is_contiguous() and target.device.type == "cpu"):
            return []
        gap = torch.empty(source.start - end, dtype=torch.uint8)
        buffers += [gap, target.reshape(-1).view(torch.uint8)]
        end = source.start + source.nbytes
    return buffers


def _divided(buffers: list[torch.Tensor], chunks: int) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Bytes in as many parts, of whole pages each but for the last, and where each begins."""
    size = sum(map(len, buffers))
    ends = [size * number // chunks // PAGE * PAGE for number in range(chunks)] + [size]
    for first, last in pairwise(ends):
        at, part = 0, []
        for buffer in buffers:
            part.append(buffer[max(0, first - at) : max(0, last - at)])
            at += len(buffer)
        yield first, [view for view in part if len(view)]


def _place(parts: tuple[Part, ...], raw: Bytes, slot: Views) -> None:
    """Copy every part of a record to its place, its type converted on the way."""
    whole = torch.from_numpy(raw)
    for part in parts:
        source, target = part.tensor, slot[part.parameter]
        pieces = [whole[r.start : r.start + r.nbytes] for r in source.ranges]
        place = (source.shape, part.strides, target.storage_offset() + part.offset)
        target.as_strided(*place).copy_(decode(source, pieces))


def rows_in_slot(quantized: Quantized, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views of a slot's first matrix or bias as the kernels have it: gate rows, then up rows."""
    if quantized.transposed and values.dim() == 2:
        values = values.T
    if not quantized.shape.gated:
        return (values,)
    if quantized.interleaved:
        return values[0::2], values[1::2]
    inner = quantized.shape.inner
    return values[:inner], values[inner:]


def _unpacked(block: torch.Tensor, shape: MatrixShape) -> torch.Tensor:
    return torch.from_numpy(unpacker()(block.numpy(), shape))


def fill_slot(
    quantized: Quantized,
    raw: torch.Tensor,
    slot: Views,
    unpack: Callable[[torch.Tensor, MatrixShape], torch.Tensor] = _unpacked,
) -> None:
    """The numbers that a record uint8 in the kernels' layout stands for, by `unpack` of a block."""
    shape, first, down = quantized.shape, quantized.first, slot["down_proj"]
    gate_up = unpack(raw[: shape.gate_up.nbytes], shape.gate_up)
    _copy_rows(gate_up, rows_in_slot(quantized, slot[first]))
    rest = raw[shape.gate_up.nbytes :]
    back = unpack(rest[: shape.down.nbytes], shape.down)
    (down.T if quantized.transposed else down).copy_(back)
    if shape.biased:
        stored = rest[shape.down.nbytes : shape.down.nbytes + 4 * shape.bias_count]
        biases = stored.view(torch.float32)
        rows = shape.gate_up.rows
        _copy_rows(biases[:rows], rows_in_slot(quantized, slot[f"{first}_bias"]))
        slot["down_proj_bias"].copy_(biases[rows:])


def _copy_rows(source: torch.Tensor, targets: tuple[torch.Tensor, ...]) -> None:
    for rows, target in zip(source.chunk(len(targets)), targets, strict=True):
        target.copy_(rows)


def unpacker() -> Callable[[Bytes, MatrixShape], NDArray[np.float32]]:
    """How a block becomes numbers: in C, or the same bits slowly where there is no library."""
    return dequantize if available() else reference.dequantize
