"""Keys and values of a batch, in the pages that transformers' continuous batching keeps them in."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.continuous_batching.cache_allocators.full_attention import (
    FullAttentionCacheAllocator,
)

from miractl.native.attention import HeadShape, Kept


def find_kept(
    cache: Any, layer: int, x: Sequence[int], told: dict[str, Any], shape: HeadShape
) -> Kept | None:
    """Where the library finds the tokens of a step, [1, T, H], that has one of each sequence.

    None for another step, as with a prompt in it, or another cache. `told` is what the layer is
    told: the mask in it then forbids nothing but the tokens of others.
    """
    allocator = getattr(cache, "layer_to_allocator", {}).get(layer)
    if type(allocator) is not FullAttentionCacheAllocator:
        return None
    if told.get("max_length_q") != 1 or told.get("block_table") is not None or x[0] != 1:
        return None
    rows, written = (told[name][allocator.index] for name in ("read_index", "write_index"))
    starts = told["cu_seq_lens_k"][allocator.layer_type]
    keys, values = allocator.get_cache_for_block_table(layer)  # [pages, tokens, heads, D]
    fits = (
        len(rows) > 0
        and len(written) == x[1] == len(starts) - 1
        and rows.dtype is written.dtype is torch.int64
        and starts.dtype is torch.int32
        and keys.dtype is values.dtype is torch.float32
        and keys.shape[2:] == (shape.heads, shape.dim)
        and all(t.is_contiguous() for t in (rows, written, starts, keys, values))
    )
    if not fits:
        return None
    where = (t.data_ptr() for t in (rows, written, starts))
    sizes = x[1], shape.heads, shape.dim, 0
    strides = 0, shape.dim, shape.heads * shape.dim, 0
    return Kept(keys.data_ptr(), values.data_ptr(), *sizes, *strides, *where)
