"""Routing drawn at random with a stated locality, for models of which nothing was recorded."""

import numpy as np

from miractl.native.replay import Routing


def repeating(
    tokens: int, layers: int, experts: int, top: int, repeat: float, seed: int = 0
) -> Routing:
    """Routing in which every expert of a token is used by the next one with a chance of `repeat`.

    Experts that are not are replaced by others, all equally likely. No other locality: no
    favourites, no topics, nothing that one layer tells of another. Uses nothing but uniform numbers
    of PCG64, so that a seed means the same everywhere. Raises ValueError where the replacements
    would be fewer than k.
    """
    if not 0 <= repeat <= 1 or experts < 2 * top:
        raise ValueError(f"Got repeat {repeat}, top {top} of {experts} experts")
    rng = np.random.Generator(np.random.PCG64(seed))
    keys = rng.random((tokens, layers, experts))
    stays = rng.random((tokens, layers, top)) < repeat
    ids = np.empty((tokens, layers, top), np.int64)
    for token in range(tokens):
        if token:
            np.put_along_axis(keys[token], ids[token - 1], np.where(stays[token], -1.0, 2.0), -1)
        ids[token] = np.argsort(keys[token], axis=-1, kind="stable")[:, :top]
    return Routing(ids, experts)
