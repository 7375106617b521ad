"""Which experts the next layer will want: a learned table, and how candidates are chosen."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from miractl.policy.keys import ExpertKey

Ids = npt.NDArray[np.int64]  # [tokens, k]
Probabilities = npt.NDArray[np.float64]  # [experts]

PRIOR = 0.5  # pseudo-count of each transition: an unseen pair is unlikely, not impossible


class MarkovTable:
    """Counts of expert e' in layer l-1 followed by expert e in layer l, for the same token.

    Ids of neighbouring layers are unrelated, so the table is learned from the stream itself: the
    first tokens fill it, every later one updates it.
    """

    def __init__(self, layers: int, experts: int, top_k: int) -> None:
        self._counts = np.full((layers, experts, experts), PRIOR)
        self._top_k = top_k
        self._previous: tuple[int, Ids] | None = None  # layer and ids seen last

    def observe(self, layer: int, ids: Ids) -> None:
        """One layer's routing, [tokens, k]; pairs with the layer before, if it came just before."""
        previous, self._previous = self._previous, (layer, ids)
        if previous is None or previous[0] != layer - 1 or len(previous[1]) != len(ids):
            return
        before, after = previous[1][:, :, None], ids[:, None, :]  # [tokens, k, 1], [tokens, 1, k]
        np.add.at(self._counts[layer], (before, after), 1.0)

    def predict(self, layer: int, ids: Ids) -> Probabilities | None:
        """Probability that each expert of `layer + 1` is used by any token; None after the last.

        For a token, P(e) = k x mean over its experts e' of count(e', e) / sum(e'); over tokens,
        1 - prod(1 - P).
        """
        if layer + 1 == len(self._counts):
            return None
        rows = self._counts[layer + 1][ids]  # [tokens, k, experts]
        rows = rows / rows.sum(axis=2, keepdims=True)
        each = np.minimum(1.0, self._top_k * rows.mean(axis=1))  # [tokens, experts]
        result: Probabilities = 1 - np.prod(1 - each, axis=0)
        return result


def candidates(
    layer: int, probabilities: Probabilities, confidence: float
) -> Iterator[tuple[ExpertKey, float]]:
    """Experts of `layer` by falling probability, until their share of the mass is `confidence`."""
    total = float(probabilities.sum())
    covered = 0.0
    for expert in np.argsort(-probabilities, kind="stable"):
        if covered >= confidence * total:
            return
        probability = float(probabilities[expert])
        covered += probability
        yield ExpertKey(layer, int(expert)), probability
