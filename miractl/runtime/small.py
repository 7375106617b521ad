"""What a token does beside products with large matrices: by the library, where it answers alike."""

import torch

from miractl.native.kernels import Pool
from miractl.runtime import attention, decoder, norms, rotary, routers


def install(model: torch.nn.Module, pool: Pool | None, to_the_bit: bool) -> None:
    """Replace the small operations of a model on the CPU.

    `to_the_bit`: only those that answer with the same bits; else within float rounding.
    """
    norms.install(model, pool)
    rotary.install(model)
    if not to_the_bit:
        attention.install(model, pool)
        routers.install(model, pool)
        decoder.install(model, pool)
