"""The weights of a model on the CPU in huge pages: a processor reads them up to twice as fast.

Matrices are read from memory from end to end for every token, and what sets the pace is how often
an address has to be looked up. Linux gives large pages to those who ask; numpy asks for whatever is
large, torch does not.
"""

import torch

from miractl.native.layout import BLOCK_ALIGNMENT
from miractl.native.memory import HUGE_PAGE, aligned_empty
from miractl.runtime.heap import give_back

LEAST_BYTES = 2**18  # of a weight: smaller ones stay in caches
MOST_LEFT = 2**26  # bytes of old places that the allocator may keep meanwhile


@torch.no_grad()
def use_huge_pages(model: torch.nn.Module) -> None:
    """Move the large weights of a model side by side, one after another; tied ones stay tied."""
    weights = [weight for weight in model.parameters() if _is_meant(weight)]
    sizes = [-(-weight.nbytes // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT for weight in weights]
    rooms = torch.from_numpy(aligned_empty(sum(sizes), HUGE_PAGE)).split_with_sizes(sizes)
    left = 0
    for weight, room in zip(weights, rooms, strict=True):
        moved = room[: weight.nbytes].view(weight.dtype).view(weight.shape)
        weight.data = moved.copy_(weight)
        left += weight.nbytes
        if left > MOST_LEFT:
            give_back()
            left = 0


def _is_meant(weight: torch.Tensor) -> bool:
    """Large, and neither a view of something larger nor spread out."""
    large = weight.device.type == "cpu" and weight.nbytes >= LEAST_BYTES
    return large and weight.is_contiguous() and weight.untyped_storage().nbytes() == weight.nbytes
