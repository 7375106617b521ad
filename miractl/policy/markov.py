"""Markov tables: what followed an expert in the next layer, and at the next token.

Ids of neighbouring layers are unrelated, so the tables are learned from the stream itself: the
first tokens fill them, every later one updates them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from miractl.native.library import library
from miractl.policy.prediction import (
    LAST,
    Popularity,
    Probabilities,
    Tables,
    is_prompt,
    owned,
    put_back,
    union,
)
from miractl.policy.routing import Ids, Routed, Segment
from miractl.policy.streams import Streams

Counts = npt.NDArray[np.float32]  # [layers, experts before, experts after]

PRIOR = 0.5  # pseudo-count of each transition: an unseen pair is unlikely, not impossible
OF_LAYER = 0.9  # weight of the layer before; more of the token before only blurs it
MOST_COUNTS = 4096.0  # a row that has been followed so often fades by half: it can change


class MarkovTable:
    """Layer to layer and token to token, each by counts; further layers by paths.

    For a token, P(e) is the sum over its experts e' of count(e', e) / sum(e'), at most 1. Of two
    layers ahead the same with P in place of the token's experts, which multiplies the probabilities
    along each path and adds up the paths.
    """

    mode = "markov"

    def __init__(self, layers: int, experts: int, top_k: int) -> None:
        """Raises MiractlError without the library."""
        shape = (layers, experts, experts)
        self._by_layer: Counts = np.full(shape, PRIOR, np.float32)
        self._by_token: Counts = np.full(shape, PRIOR, np.float32)
        self._own = {"markov.by_layer": self._by_layer, "markov.by_token": self._by_token}
        self._starts = self._by_layer.ctypes.data, self._by_token.ctypes.data
        self._bytes = self._by_layer.strides[0]  # of a layer
        self._guess: Probabilities = np.zeros((3, experts))  # and scratch
        self._guess_at = self._guess[1:].ctypes.data, self._guess[0].ctypes.data
        self._library = library()
        self._popular = Popularity(layers, experts, top_k)
        self._experts, self._layers = experts, layers
        self._past = Streams(lambda: _Past(layers, top_k))
        self._before: Routed | None = None
        self._step: Routed | None = None

    def observe(self, step: Routed, hidden: Any = None) -> None:
        """Count what followed whom. Raises ValueError for experts that do not exist."""
        before, self._before = self._before, step
        self._step = step
        self._popular.observe(step)
        ids, _ = step.addresses
        row_bytes, layer = step.ids.strides[0], step.layer
        paired = before is not None and before.layer == layer - 1
        for part in owned(step):
            first = max(part.start, part.stop - LAST)
            count = part.stop - first
            if before is not None and paired and len(before.ids) == len(step.ids):
                told, _ = before.addresses
                at = first * row_bytes
                self._count(0, step, told + at, ids + at, count)
            past = self._past.begin(part) if layer == 0 else self._past.of(part)
            at = ids + first * row_bytes
            if past.known[layer] and count == len(part):
                self._count(1, step, past.address + layer * row_bytes, at, 1)
            self._count(1, step, at, at + row_bytes, count - 1)
            past.ids[layer] = step.ids[part.stop - 1]
            past.known[layer] = True

    def guess(self, ahead: int) -> Probabilities | None:
        """By both tables for new tokens, by popularity for prompts."""
        step = self._step
        if step is None or step.layer + ahead >= self._layers:
            return None
        if is_prompt(step):
            return self._popular.guess(ahead)
        parts = owned(step)
        if len(parts) == 1:
            return self._follow(step, parts[0], ahead)
        return union(np.stack([self._follow(step, p, ahead) for p in parts])) if parts else None

    def fade(self) -> None:
        """Halve what was counted; the prior stays."""
        for table in (self._by_layer, self._by_token):
            table -= (table - PRIOR) / 2
        self._popular.fade()

    def tables(self) -> Tables:
        """All counts."""
        return {**self._own, **self._popular.tables()}

    def recall(self, tables: Tables) -> None:
        """As the protocol says."""
        put_back(self._own, tables)
        self._popular.recall(tables)

    def _follow(self, step: Routed, part: Segment, ahead: int) -> Probabilities:
        ids, _ = step.addresses
        row_bytes, layer = step.ids.strides[0], step.layer + ahead
        past = self._past.of(part)
        by_layer, by_token = self._starts
        self._library.mira_markov_guess(
            *(by_layer + (step.layer + 1) * self._bytes, by_token + layer * self._bytes),
            *(self._experts, ahead, ids + (part.stop - 1) * row_bytes),
            past.address + layer * row_bytes if past.known[layer] else None,
            *(step.ids.shape[1], OF_LAYER, *self._guess_at),
        )
        result: Probabilities = self._guess[0].copy()
        return result

    def _count(self, table: int, step: Routed, before: int, after: int, tokens: int) -> None:
        """Count pairs of the same row, int64 [tokens, k] at two addresses, for the step's layer."""
        top = step.ids.shape[1]
        at = self._starts[table] + step.layer * self._bytes
        most = MOST_COUNTS * top
        if tokens > 0 and self._library.mira_markov_count(
            at, self._experts, before, after, tokens, top, most
        ):
            raise ValueError(f"Got experts that are none of {self._experts}")


class _Past:
    """Of one sequence: the experts of its last token in each layer, [layers, k], where known."""

    def __init__(self, layers: int, top_k: int) -> None:
        self.ids: Ids = np.zeros((layers, top_k), np.int64)
        self.known = [False] * layers
        self.address = self.ids.ctypes.data
