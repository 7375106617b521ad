"""Experts by the position in the sequence, and the Markov tables until there is one."""

from typing import Any

import numpy as np

from miractl.policy.markov import MarkovTable
from miractl.policy.prediction import (
    Popularity,
    Probabilities,
    Tables,
    is_prompt,
    owned,
    put_back,
    union,
)
from miractl.policy.routing import Routed

PLACES = 24  # positions 0, 1, 2-3, 4-7 and so on by powers of two
PRIOR_TOKENS = 8.0  # before the first, spread evenly
MOST_TOKENS = 4096.0  # of a place; then it fades by half
HYBRID_TOKENS = 512


def place_of(position: int) -> int:
    """Which power of two a position belongs to."""
    return min(position.bit_length(), PLACES - 1)


class PositionTable:
    """How often each expert was used at such a position, whatever came before."""

    mode = "token-position"

    def __init__(self, layers: int, experts: int, top_k: int) -> None:
        self._counts = np.full((PLACES, layers, experts), PRIOR_TOKENS * top_k / experts)
        self._tokens = np.full((PLACES, layers), PRIOR_TOKENS)
        self._own = {"position.counts": self._counts, "position.tokens": self._tokens}
        self._popular = Popularity(layers, experts, top_k)
        self._layers = layers
        self._step: Routed | None = None

    def observe(self, step: Routed, hidden: Any = None) -> None:
        """Count the tokens at their places."""
        self._step = step
        self._popular.observe(step)
        for part in owned(step):
            places = [place_of(part.position + at) for at in range(len(part))]
            for place in sorted(set(places)):
                rows = step.ids[part.start : part.stop][[at == place for at in places]]
                self._count(place, step.layer, rows)

    def guess(self, ahead: int) -> Probabilities | None:
        """By the places of the new tokens, by popularity for prompts."""
        step = self._step
        if step is None or step.layer + ahead >= self._layers:
            return None
        if is_prompt(step):
            return self._popular.guess(ahead)
        layer, places = step.layer + ahead, [place_of(part.position) for part in owned(step)]
        if not places:
            return None
        return union(self._counts[places, layer] / self._tokens[places, layer, None])

    def fade(self) -> None:
        """Halve what was counted."""
        self._counts *= 0.5
        self._tokens *= 0.5
        self._popular.fade()

    def tables(self) -> Tables:
        """All counts."""
        return {**self._own, **self._popular.tables()}

    def recall(self, tables: Tables) -> None:
        """As the protocol says."""
        put_back(self._own, tables)
        self._popular.recall(tables)

    def _count(self, place: int, layer: int, ids: Any) -> None:
        row = self._counts[place, layer]
        row += np.bincount(ids.reshape(-1), minlength=len(row))
        self._tokens[place, layer] += len(ids)
        if self._tokens[place, layer] > MOST_TOKENS:
            self._tokens[place, layer] *= 0.5
            row *= 0.5


class Hybrid:
    """Markov tables for the first 512 tokens of a sequence, then its position."""

    mode = "hybrid"

    def __init__(self, layers: int, experts: int, top_k: int) -> None:
        self._markov = MarkovTable(layers, experts, top_k)
        self._position = PositionTable(layers, experts, top_k)
        self._early = True

    def observe(self, step: Routed, hidden: Any = None) -> None:
        """Both learn; who answers is settled by the youngest sequence of the step."""
        self._early = any(part.position < HYBRID_TOKENS for part in owned(step))
        self._markov.observe(step)
        self._position.observe(step)

    def guess(self, ahead: int) -> Probabilities | None:
        """Of the one whose turn it is."""
        return (self._markov if self._early else self._position).guess(ahead)

    def fade(self) -> None:
        """Both."""
        self._markov.fade()
        self._position.fade()

    def tables(self) -> Tables:
        """Of both."""
        return {**self._markov.tables(), **self._position.tables()}

    def recall(self, tables: Tables) -> None:
        """As the protocol says, each its own."""
        self._markov.recall(tables)
        self._position.recall(tables)
