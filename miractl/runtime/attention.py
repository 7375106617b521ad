"""Attention of one new token of each sequence by one call of the library.

Where transformers looks up its attention function `sdpa`, it finds one that asks the library for
models that were named, in float32 on the CPU, and where the token sees all keys: nothing is masked.
Everything else is the affair of the function that was there. The library adds up in another order
than torch, so this is for models whose numbers are rounded to codes anyway.
"""

import functools
import weakref
from typing import Any

import torch
from transformers import AttentionInterface

from miractl.native.attention import MOST_GROUP, Queries, attend_at
from miractl.native.kernels import Pool

NAME = "sdpa"

Answer = tuple[torch.Tensor, torch.Tensor | None]

_pools: "weakref.WeakKeyDictionary[torch.nn.Module, Pool | None]" = weakref.WeakKeyDictionary()


def install(model: torch.nn.Module, pool: Pool | None) -> None:
    """Compute attention of this model by the library, where that can be."""
    stock = AttentionInterface()[NAME]
    if not hasattr(stock, "_stock"):
        AttentionInterface.register(NAME, _replacement(stock))
    _pools.update(dict.fromkeys(model.modules(), pool))


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, pool: Pool | None
) -> torch.Tensor:
    """softmax(scale q k^T) v of q [B, heads * group, 1, D], k and v [B, heads, tokens, D].

    The answer is [B, 1, heads * group, D].
    """
    batch, heads, tokens, dim = k.shape
    y = torch.empty(batch, 1, q.shape[1], dim)
    queries = Queries(
        *(batch, heads, q.shape[1] // heads, tokens, dim),
        *(*q.stride()[:2], *k.stride()[:3], *v.stride()[:3], None, None, scale),
    )
    attend_at(queries, q.data_ptr(), k.data_ptr(), v.data_ptr(), y.data_ptr(), pool)
    return y


def _replacement(stock: Any) -> Any:
    @functools.wraps(stock)
    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> Answer:
        plain = query.shape[2] == 1 and attention_mask is None and module in _pools
        if not (plain and _fits(module, query, key, value, kwargs) and dropout == 0):
            answer: Answer = stock(
                *(module, query, key, value, attention_mask),
                **{"dropout": dropout, "scaling": scaling, **kwargs},
            )
            return answer
        scale = query.shape[3] ** -0.5 if scaling is None else scaling
        return attend(query, key, value, scale, _pools[module]), None

    attention._stock = stock  # type: ignore[attr-defined]
    return attention


def _fits(
    module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, extra: dict[str, Any]
) -> bool:
    """Whether the library can take these, and nothing extra is asked for."""
    group = getattr(module, "num_key_value_groups", 1)
    return (
        q.dtype is k.dtype is v.dtype is torch.float32
        and q.device.type == "cpu"
        and q.shape == (k.shape[0], k.shape[1] * group, 1, k.shape[3])
        and k.shape == v.shape
        and k.shape[2] > 0
        and group <= MOST_GROUP
        and q.stride(3) == k.stride(3) == v.stride(3) == 1
        and not (q.requires_grad or k.requires_grad or v.requires_grad)
        and not any(extra.get(name) for name in ("softcap", "output_attentions"))
        and extra.get("position_bias") is None
    )
