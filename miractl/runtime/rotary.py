"""Rotary positions by one call of the library for queries and one for keys, instead of a dozen.

A family's modeling file has a function for it. Where that one's answer is, to the last bit, that of
the usual formula, it is replaced in its file; for anything but float32 on the CPU the replacement
calls it, and where gradients are wanted. Other models of the family in this process get the same
bits as before.
"""

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from miractl.native.library import library

NAME = "apply_rotary_pos_emb"  # in the modeling files of transformers

Pair = tuple[torch.Tensor, torch.Tensor]
Rotate = Callable[..., Pair]


class _Heads(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("batch", "heads", "tokens", "dim"),
            *("batch_stride", "head_stride", "token_stride", "angle_stride"),
        )
    ]


def install(model: torch.nn.Module) -> None:
    """Replace the function of every modeling file that the model comes from."""
    for name in {type(module).__module__ for module in model.modules()}:
        file = sys.modules[name]
        stock = getattr(file, NAME, None)
        if stock is not None and not hasattr(stock, "_stock") and _is_usual(stock):
            setattr(file, NAME, replacement(stock))


def replacement(stock: Rotate) -> Rotate:
    """A function that answers like `stock`, for float32 on the CPU by the library."""
    call = library().mira_rotate

    def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        shared = cos.shape[0] == 1
        heads = _Heads(*x.shape, *x.stride()[:3], 0 if shared else cos.stride(0))
        call(ctypes.addressof(heads), *(t.data_ptr() for t in (x, cos, sin, y)))
        return y

    @functools.wraps(stock)
    def both(q: torch.Tensor, k: torch.Tensor, cos: Any, sin: Any, *args: Any, **kw: Any) -> Pair:
        if args or kw or not (_fits(q, cos, sin) and _fits(k, cos, sin)):
            return stock(q, k, cos, sin, *args, **kw)
        return rotate(q, cos, sin), rotate(k, cos, sin)

    both._stock = stock  # type: ignore[attr-defined]
    return both


def _fits(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether x [B, H, T, D] and angles [B or 1, T, D] are what the library takes."""
    return (
        x.dtype is cos.dtype is sin.dtype is torch.float32
        and x.device.type == "cpu"
        and x.dim() == 4
        and not x.requires_grad
        and cos.shape == sin.shape
        and cos.shape[1:] == (x.shape[2], x.shape[3])
        and cos.shape[0] in (1, x.shape[0])
        and x.shape[3] % 2 == 0
        and cos.is_contiguous()
        and sin.is_contiguous()
        and (x.is_contiguous() or x.transpose(1, 2).is_contiguous())
    )


@torch.no_grad()
def _is_usual(stock: Rotate) -> bool:
    """Whether a function is the usual formula, found by asking it."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, heads, 8, generator=generator).transpose(1, 2) for heads in (4, 2))
    cos, sin = (torch.randn(2, 3, 8, generator=generator) for _ in range(2))
    try:
        answers = stock(q, k, cos, sin)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return False  # it wants something else
    found = replacement(stock)(q, k, cos, sin)
    return len(answers) == 2 and all(map(torch.equal, answers, found))
