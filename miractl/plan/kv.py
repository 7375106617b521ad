"""The cache of keys and values where requests share steps, as transformers lays it out.

A page holds PAGE tokens of one layer. A block is the pages of all layers that attend alike, and a
sector the least that divides into blocks of every kind: layers with a window may be fewer or more
than those without. A cache is so many sectors, and two more for what padding reads and writes.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from miractl.checkpoint.geometry import KvGroup
from miractl.units import GIB

PAGE = 256  # tokens
FREE_SHARE = 0.15  # of the sectors: with fewer free ones no new prompt is taken
SPARE = 2  # sectors for padding
KV_MEMORY = GIB  # for all requests together, unless the user says more, or one alone needs more


@dataclass(frozen=True, slots=True)
class KvCache:
    """One size of the cache. `layers` are those of a sector, which is PAGE tokens of each."""

    sectors: int
    layers: int
    blocks: int  # of PAGE tokens in all layers: the unit that a batch is told its size in
    tokens: int  # that one step can see at most
    requests: int  # of full context that are held at once; more wait, or are computed again
    bytes: int


def paged_cache(
    groups: Sequence[KvGroup], element: int, context: int, count: int, bound: int
) -> KvCache:
    """The cache for `count` requests of `context` tokens within `bound` bytes, at least for one.

    Args:
        groups: layers that keep the same for each token, at least one group.
        element: bytes of one number.
        context: tokens of one request.
        count: requests at the same time.
        bound: bytes, exceeded only where one request alone needs more.
    """
    layers = math.lcm(*(group.layers for group in groups))
    every = sum(group.layers for group in groups)
    sector = layers * PAGE * element * max(group.elements for group in groups)

    def wanted(requests: int) -> int:
        return math.ceil(_filled(groups, context, requests, layers) / (1 - FREE_SHARE))

    affordable = bound // sector - SPARE
    least = _filled(groups, context, 1, layers) + 1
    # Rounded so that the number of blocks, which is what can be said, makes just these sectors.
    blocks = max(
        math.ceil(least * layers / every),
        min(math.ceil(wanted(count) * layers / every), affordable * layers // every),
    )
    sectors = math.ceil(blocks * every / layers)
    return KvCache(
        sectors=sectors,
        layers=layers,
        blocks=blocks,
        tokens=PAGE * sectors * layers // min(group.layers for group in groups),
        requests=max(1, bisect_right(range(1, count + 1), sectors, key=wanted)),
        bytes=(sectors + SPARE) * sector,
    )


def pages(context: int, window: int | None = None) -> int:
    """Pages of a layer for one request: what its context fills and one more, or its window."""
    full = math.ceil(context / PAGE) + 1
    return full if window is None else min(full, math.ceil(window / PAGE))


def _filled(groups: Sequence[KvGroup], context: int, requests: int, layers: int) -> int:
    """Sectors of so many layers that requests of full context fill."""
    return sum(
        math.ceil(requests * pages(context, group.window) * group.layers / layers)
        for group in groups
    )
