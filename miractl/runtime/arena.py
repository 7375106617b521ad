"""The memory of all expert slots, allocated once: the token path allocates nothing for weights."""

from collections.abc import Mapping, Sequence

import torch

from miractl.native.layout import RECORD_ALIGNMENT
from miractl.native.memory import aligned_empty

Shapes = Mapping[str, tuple[int, ...]]  # parameter name -> shape of one expert's part


def expert_nbytes(shapes: Shapes, dtype: torch.dtype) -> int:
    """Bytes of one expert in a slot."""
    return sum(torch.Size(shape).numel() for shape in shapes.values()) * dtype.itemsize


class SlotArena:
    """One tensor [slots, *shape] for each parameter of an expert, and views of each slot.

    Where experts have several shapes each has its pool of slots; these are numbered through.
    """

    def __init__(
        self, pools: Sequence[tuple[int, Shapes]], dtype: torch.dtype, device: torch.device
    ) -> None:
        """`pools` are numbers of slots and what is in one."""
        self.buffers = [
            {name: _aligned((slots, *shape), dtype, device) for name, shape in shapes.items()}
            for slots, shapes in pools
        ]
        self._views = [
            {name: buffer[slot] for name, buffer in buffers.items()}
            for buffers, (slots, _) in zip(self.buffers, pools, strict=True)
            for slot in range(slots)
        ]
        sizes = [expert_nbytes(shapes, dtype) for _, shapes in pools]
        self.largest = max(sizes)  # bytes of a slot
        self.nbytes = sum(slots * size for (slots, _), size in zip(pools, sizes, strict=True))

    def __getitem__(self, slot: int) -> dict[str, torch.Tensor]:
        """Parameter name -> view of the slot's part."""
        return self._views[slot]


def _aligned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Uninitialised memory that direct reads can go to."""
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    if device.type == "cpu":  # numpy asks for huge pages: a fifth and more of reading speed
        room = torch.from_numpy(aligned_empty(nbytes, RECORD_ALIGNMENT))
    else:
        room = torch.empty(nbytes, dtype=torch.uint8, device=device)
    return room.view(dtype).view(shape)
