"""What a slot holds, and what computes experts in it: torch on numbers, the kernels on records.

Beside a GPU the kernels compute what has no slot there.

Both are given the slots in groups, as experts arrive, and keep outputs apart by (token, k) until
the end, so that a result does not depend on the grouping.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch

from miractl.checkpoint.record import Quantized, why_decoded
from miractl.native.kernels import Layer, Pool
from miractl.native.library import isa
from miractl.runtime.arena import Shapes, SlotArena, expert_nbytes
from miractl.runtime.cache import NO_SLOT
from miractl.runtime.host_tier import HostTier
from miractl.runtime.mixture import mix
from miractl.runtime.outline import Outline
from miractl.runtime.packed import RECORD
from miractl.runtime.streams import GPUS

if TYPE_CHECKING:
    from miractl.runtime.host_experts import HostExperts

Group = Sequence[Sequence[int]]  # (expert, slot) pairs that can be computed now


class Compute(Protocol):
    """Computes the experts of a layer from their slots."""

    name: str  # "torch", or the kernels' instruction set

    def mix(
        self,
        layer: int,
        module: torch.nn.Module,
        x: torch.Tensor,
        ids: npt.NDArray[np.int64],
        scores: torch.Tensor,
        experts: int,
        groups: Iterable[Group],
    ) -> torch.Tensor:
        """Sum of scores x expert outputs, [T, H].

        x [T, H]; ids and scores [T, k], with `experts` different ids, each once in `groups`.
        `layer` counts those with experts.
        """


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """The memory of one slot of each pool. `records`: a record, which the kernels compute from."""

    kinds: tuple[Shapes, ...]
    dtype: torch.dtype
    records: Quantized | None = None
    note: str | None = None  # why codes become numbers on arrival all the same

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of one expert in a slot of each pool."""
        return tuple(expert_nbytes(shapes, self.dtype) for shapes in self.kinds)

    @property
    def format(self) -> str:
        """`i4k`, `float32`."""
        if self.records is not None:
            return self.records.shape.format.name
        return str(self.dtype).removeprefix("torch.")


def slot_layout(outline: Outline, device: torch.device, dtype: torch.dtype) -> SlotLayout:
    """What slots of a model hold: records where the kernels can compute from them."""
    manifest = outline.manifest
    if manifest is None or manifest.record.quantized is None:
        return SlotLayout(outline.kinds, dtype)
    if device.type in GPUS:
        note = f"{manifest.kind} records are decoded on {device.type}"
        return SlotLayout(outline.kinds, dtype, note=note)
    if (why := why_decoded(manifest.record, device.type)) is not None:
        name = str(dtype).removeprefix("torch.")
        note = f"{manifest.kind} experts become {name} on arrival, which is slow: {why}"
        return SlotLayout(outline.kinds, dtype, note=note)
    shapes = {RECORD: (manifest.record.nbytes,)}
    return SlotLayout((shapes,), torch.uint8, manifest.record.quantized)


def compute_for(
    layout: SlotLayout,
    memory: SlotArena | HostTier,
    experts: int,
    pool: Pool | None,
    host: "HostExperts | None" = None,
) -> "Compute":
    """What computes from slots, or from records in the host tier, layers of so many experts.

    `host` computes those that have no slot.
    """
    if isinstance(memory, HostTier):
        assert layout.records is not None
        return KernelCompute(memory, layout.records, experts, pool)
    if layout.records is None:
        return TorchCompute(memory, host)
    return KernelCompute(SlotRecords(memory), layout.records, experts, pool)


class TorchCompute:
    """Slots that hold numbers of the compute type."""

    name = "torch"

    def __init__(self, arena: SlotArena, host: "HostExperts | None" = None) -> None:
        self._arena, self._host = arena, host

    def mix(
        self,
        layer: int,
        module: torch.nn.Module,
        x: torch.Tensor,
        ids: npt.NDArray[np.int64],
        scores: torch.Tensor,
        experts: int,
        groups: Iterable[Group],
    ) -> torch.Tensor:
        """As the protocol says."""
        arena, host = self._arena, self._host
        arrivals = (
            [(expert, None if slot == NO_SLOT else arena[slot]) for expert, slot in group]
            for group in groups
        )
        elsewhere = None if host is None else host.beside(layer, x, ids)
        return mix(module, x, ids, scores, arrivals, elsewhere)


class Records(Protocol):
    """Where records are that the kernels compute from."""

    def addresses(self, layer: int, group: Group) -> list[int]:
        """Of experts that are in these slots."""


class SlotRecords:
    """Records in the slots themselves."""

    def __init__(self, arena: SlotArena) -> None:
        (buffers,) = arena.buffers
        records = buffers[RECORD]  # uint8 [slots, record]
        self._arena = arena  # which the addresses point into
        self._first, self._step = records.data_ptr(), records.stride(0)

    def addresses(self, layer: int, group: Group) -> list[int]:
        """As the protocol says."""
        first, step = self._first, self._step
        return [first + slot * step for _, slot in group]


class KernelCompute:
    """Experts that lie as records: one call of the library a group, none of torch's.

    One call at a time: the table of where the experts are is filled anew for each.
    """

    def __init__(
        self, records: Records, quantized: Quantized, experts: int, pool: Pool | None
    ) -> None:
        self.name = isa()
        self._layer, self._pool = Layer(quantized.shape, experts), pool
        self._records = records
        self._blocks = np.zeros(experts, np.uint64)
        self._table = self._blocks.ctypes.data
        self._ids = np.empty(0, np.int32)
        self._ids_at = 0

    def mix(
        self,
        layer: int,
        module: torch.nn.Module,
        x: torch.Tensor,
        ids: npt.NDArray[np.int64],
        scores: torch.Tensor,
        experts: int,
        groups: Iterable[Group],
    ) -> torch.Tensor:
        """As the protocol says. `module` is not asked: the record's shape has its activation."""
        tokens, k = ids.shape
        given, weights = _floats(x), _floats(scores)
        parts, y = torch.empty(tokens * k, x.shape[1]), torch.empty(tokens, x.shape[1])
        asked = given.data_ptr(), tokens, self._chosen(ids), k
        into, at = parts.data_ptr(), y.data_ptr()
        for group in groups:
            experts -= len(group)
            self._find(layer, group)
            last = (weights.data_ptr(), at) if experts == 0 else (None, None)
            self._layer.run_at(*asked, last[0], into, last[1], self._pool, self._table)
        return y if x.dtype is y.dtype else y.to(x.dtype)

    def outputs(
        self, layer: int, x: torch.Tensor, ids: npt.NDArray[np.int64], group: Group
    ) -> torch.Tensor:
        """Outputs [T * k, H] of a group for x float32 [T, H]; rows of others hold anything."""
        tokens, k = ids.shape
        parts = torch.empty(tokens * k, x.shape[1])
        self._find(layer, group)
        asked = x.data_ptr(), tokens, self._chosen(ids), k, None
        self._layer.run_at(*asked, parts.data_ptr(), None, self._pool, self._table)
        return parts

    def _find(self, layer: int, group: Group) -> None:
        """The table says where a group's experts are."""
        blocks = self._blocks
        blocks.fill(0)
        found = self._records.addresses(layer, group)
        for (expert, _), address in zip(group, found, strict=True):
            blocks[expert] = address

    def _chosen(self, ids: npt.NDArray[np.int64]) -> int:
        """The address of the ids as the library wants them; good until the next call."""
        if self._ids.size < ids.size:
            self._ids = np.empty(ids.size, np.int32)
            self._ids_at = self._ids.ctypes.data  # slow to ask for
        self._ids[: ids.size] = ids.reshape(-1)
        return self._ids_at


def _floats(values: torch.Tensor) -> torch.Tensor:
    """Without gaps; a copy only where it has to be."""
    return (values if values.dtype is torch.float32 else values.float()).contiguous()
