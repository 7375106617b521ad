"""Bets: what the next layer may want is staged before its router has spoken."""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from miractl.policy.prediction import MarkovTable, Probabilities, candidates
from miractl.runtime.cache import ExpertCache


class Predictor(Protocol):
    """Guesses the next layer's experts. May be wrong at no cost but time."""

    mode: str

    def predict(
        self, layer: int, x: torch.Tensor, ids: npt.NDArray[np.int64]
    ) -> Probabilities | None:
        """How much each expert of `layer + 1` is wanted, [experts]; x [T, H], ids [T, k]."""


class TablePredictor:
    """By a Markov table, learned from the stream."""

    mode = "markov"

    def __init__(self, table: MarkovTable) -> None:
        self._table = table

    def predict(
        self, layer: int, x: torch.Tensor, ids: npt.NDArray[np.int64]
    ) -> Probabilities | None:
        """Learn from this layer, then guess; nothing follows the last one."""
        self._table.observe(layer, ids)
        return self._table.predict(layer, ids)


class Prefetcher:
    """Turns guesses into bets, the most probable experts first."""

    def __init__(self, cache: ExpertCache, predictor: Predictor, confidence: float) -> None:
        self.predictor = predictor
        self._cache, self._confidence = cache, confidence

    def after_routing(self, layer: int, x: torch.Tensor, ids: npt.NDArray[np.int64]) -> None:
        """Bet, now that x [T, H] and ids [T, k] of `layer` are known."""
        wanted = self.predictor.predict(layer, x, ids)
        if wanted is not None:
            self._cache.bet(candidates(layer + 1, wanted, self._confidence))
