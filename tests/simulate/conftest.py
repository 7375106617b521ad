"""Small recordings that the tests share."""

import numpy as np
from hypothesis import strategies as st

from miractl.native.replay import Routing

SHAPES = {  # what `random_routing` takes
    "seed": st.integers(0, 2**31),
    "tokens": st.integers(1, 40),
    "layers": st.integers(1, 6),
    "experts": st.integers(2, 20),
    "top": st.integers(1, 2),
    "texts": st.integers(1, 4),
}


def random_routing(
    seed: int, tokens: int, layers: int, experts: int, top: int, texts: int = 1
) -> Routing:
    """Routing with favourites and repeats, so that policies differ."""
    rng = np.random.default_rng(seed)
    liking = rng.gumbel(size=(layers, experts)) * 1.5
    state = np.zeros((layers, experts))
    ids = np.empty((tokens, layers, top), np.int64)
    probabilities = np.empty(ids.shape, np.float32)
    for token in range(tokens):
        state = 0.8 * state + rng.normal(size=state.shape)
        logits = liking + state
        ids[token] = np.argsort(-logits, axis=1)[:, :top]
        probabilities[token] = np.exp(np.take_along_axis(logits, ids[token], axis=1))
    starts = np.zeros(tokens, bool)
    starts[:: max(1, -(-tokens // texts))] = True
    return Routing(ids, experts, probabilities, starts)


@st.composite
def routings(draw: st.DrawFn, most_tokens: int = 25, most_layers: int = 3) -> Routing:
    experts = draw(st.integers(1, 6))
    top = draw(st.integers(1, min(3, experts)))
    tokens, layers = draw(st.integers(1, most_tokens)), draw(st.integers(1, most_layers))
    return random_routing(draw(st.integers(0, 2**31)), tokens, layers, experts, top)
