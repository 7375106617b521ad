"""Root mean square norms by one call of the library, where stock modules make eight of torch's.

Which modules are such norms is found by asking them, not by their names: one whose answers are, to
the last bit, those of the formula with its weights or with one more than its weights is computed by
it. For anything but one tensor of float32 without gaps, or with gradients, it stays what it was.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch

from miractl.native.kernels import Pool
from miractl.native.norm import LANES, Norm

LEAST_COLUMNS = max(LANES)  # torch adds up shorter rows in another way
_SIZES = (1.0, 1e-3, 1e-4, 1e3)  # of what a module is asked: eps shows where values are small


def install(model: torch.nn.Module, pool: Pool | None) -> int:
    """Compute every norm of a model on the CPU by the library; returns how many there are."""
    found = 0
    for module in model.modules():
        norm = find_norm(module)
        if norm is not None:
            # On the object: hooks and whoever asks for its weights or class still find the module.
            module.forward = _forward(norm, module.forward, pool)
            found += 1
    return found


@torch.no_grad()
def find_norm(module: torch.nn.Module) -> Norm | None:
    """What a module computes if that is a norm of float32 rows; None if not."""
    own = dict(module.named_parameters())
    weight = own.pop("weight", None)
    if (
        weight is None
        or own
        or any(True for _ in module.children())
        or any(True for _ in module.buffers())
    ):
        return None
    if (
        weight.dim() != 1
        or len(weight) < LEAST_COLUMNS
        or weight.dtype is not torch.float32
        or weight.device.type != "cpu"
    ):
        return None
    generator = torch.Generator().manual_seed(0)
    rows = [size * torch.randn(len(weight), generator=generator) for size in _SIZES]
    x = torch.stack(rows)
    try:
        answer = module(x)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return None  # it wants something else than rows of numbers
    if not isinstance(answer, torch.Tensor) or answer.shape != x.shape:
        return None
    epsilons = {v for v in vars(module).values() if isinstance(v, float) and 0 <= v < 1}
    for scale, eps, lanes in itertools.product((weight, 1 + weight), epsilons, LANES):
        norm = Norm(scale.detach().clone().numpy(), eps, lanes)
        if torch.equal(_apply(norm, x, None), answer):
            return norm
    return None


def _apply(norm: Norm, x: torch.Tensor, pool: Pool | None) -> torch.Tensor:
    y = torch.empty_like(x)
    norm.norm_at(x.data_ptr(), x.numel() // norm.columns, y.data_ptr(), pool)
    return y


def _forward(
    norm: Norm, stock: Callable[..., torch.Tensor], pool: Pool | None
) -> Callable[..., torch.Tensor]:
    columns = norm.columns

    def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        usual = x.dtype is torch.float32 and x.shape[-1] == columns and x.is_contiguous()
        if args or kwargs or not usual or x.requires_grad:
            return stock(x, *args, **kwargs)
        return _apply(norm, x, pool)

    return forward
