"""The weights of a model on the CPU in huge pages: a processor reads them up to twice as fast.

Matrices are read from memory from end to end for every token, and what sets the pace is how often
an address has to be looked up. Linux gives large pages to those who ask; numpy asks for whatever is
large, torch does not.
"""

import torch

from miractl.native.memory import HUGE_PAGE, aligned_empty

LEAST_BYTES = 2**18  # of a weight: smaller ones stay in caches


@torch.no_grad()
def use_huge_pages(model: torch.nn.Module) -> None:
    """Move the large weights of a model, one after another; tied ones stay tied."""
    for weight in model.parameters():
        if weight.device.type == "cpu" and weight.nbytes >= LEAST_BYTES and _is_whole(weight):
            room = torch.from_numpy(aligned_empty(weight.nbytes, HUGE_PAGE))
            moved = room.view(weight.dtype).view(weight.shape)
            weight.data = moved.copy_(weight)


def _is_whole(weight: torch.Tensor) -> bool:
    """Not a view of something larger, nor spread out."""
    return weight.is_contiguous() and weight.untyped_storage().nbytes() == weight.nbytes
