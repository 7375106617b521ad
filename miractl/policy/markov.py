"""Markov tables: what followed an expert in the next layer, and at the next token.

Ids of neighbouring layers are unrelated, so the tables are learned from the stream itself: the
first tokens fill them, every later one updates them.
"""

from typing import Any

import numpy as np

from miractl.native.chain import BY_LAYER, BY_TOKEN, Chain, Walk
from miractl.native.teller import Teller
from miractl.native.tutor import Tutor
from miractl.policy.prediction import (
    LAST,
    Popularity,
    Probabilities,
    Tables,
    is_prompt,
    only,
    owned,
    put_back,
    union,
)
from miractl.policy.routing import Routed, Segment
from miractl.policy.streams import Streams

PRIOR = 0.5  # pseudo-count of each transition: an unseen pair is unlikely, not impossible
OF_LAYER = 0.9  # weight of the layer before; more of the token before only blurs it
MOST_COUNTS = 4096.0  # a row that has been followed so often fades by half: it can change


class MarkovTable:
    """Layer to layer and token to token, each by counts; further layers by paths.

    For a token, P(e) is the sum over its experts e' of count(e', e) / sum(e'), at most 1. Of two
    layers ahead the same with P in place of the token's experts, which multiplies the probabilities
    along each path and adds up the paths. New tokens are counted on a thread when their step is
    through: in it only later layers are asked about.
    """

    mode = "markov"

    def __init__(self, layers: int, experts: int, top_k: int) -> None:
        """Raises MiractlError without the library."""
        self._chain = Chain(
            *(layers, experts, top_k), prior=PRIOR, most=MOST_COUNTS * top_k, of_layer=OF_LAYER
        )
        by_layer, by_token = self._chain.tables
        self._own = {"markov.by_layer": by_layer, "markov.by_token": by_token}
        self._popular = Popularity(layers, experts, top_k)
        self._layers = layers
        self._past = Streams(lambda: _Past(self._chain))
        self._tutor = Tutor()
        self._step: Routed | None = None
        self._alone: _Past | None = None  # of a step that is one new token

    def observe(self, step: Routed, hidden: Any = None) -> None:
        """Follow the step; at its last layer what followed whom begins to be counted.

        Raises ValueError for experts that do not exist.
        """
        before, self._step, layer = self._step, step, step.layer
        if layer == 0:
            self._begin(step)
        alone = self._alone
        if alone is None:
            self._popular.observe(step)
            for part in owned(step):
                self._follow(before, step, part)
        elif alone.next_layer == layer:
            alone.follow(layer, (step.at or step.addresses)[0])
        if layer == self._layers - 1:
            self._teach(step)

    def teller(self, step: Routed) -> Teller | None:
        """That of the sequence whose new token is all of the step, but for the outermost layers."""
        alone, layer = self._alone, step.layer
        if alone is None or alone.next_layer != layer or not 0 < layer < self._layers - 1:
            return None
        self._step, alone.next_layer = step, layer + 1
        return alone.teller

    def guess(self, ahead: int) -> Probabilities | None:
        """By both tables for new tokens, by popularity for prompts. Overwritten by the next."""
        step, alone = self._step, self._alone
        if step is None or step.layer + ahead >= self._layers:
            return None
        if alone is not None:
            return alone.walk.guess(step.layer, ahead) if alone.next_layer > step.layer else None
        if is_prompt(step):
            return self._popular.guess(ahead)
        pasts = [self._past.of(part) for part in owned(step)]
        each = [p.walk.guess(step.layer, ahead) for p in pasts if p.next_layer == step.layer + 1]
        return union(np.stack(each)) if each else None

    def fade(self) -> None:
        """Halve what was counted; the prior stays."""
        self._tutor.wait()
        self._chain.fade()
        self._popular.fade()

    def tables(self) -> Tables:
        """All counts."""
        self._tutor.wait()
        return {**self._own, **self._popular.tables()}

    def recall(self, tables: Tables) -> None:
        """As the protocol says."""
        if put_back(self._own, tables):
            self._chain.add_up()
        self._popular.recall(tables)

    def _begin(self, step: Routed) -> None:
        """Take a step in."""
        self._tutor.wait()
        for part in owned(step):
            past = self._alone = self._past.begin(part)
            past.next_layer = 0
        if only(step) is None:
            self._alone = None

    def _follow(self, before: Routed | None, step: Routed, part: Segment) -> None:
        """Count the end of a prompt at once; keep the last token."""
        past, (ids, _) = self._past.of(part), step.addresses
        row_bytes, layer = step.ids.strides[0], step.layer
        if past.next_layer != layer:
            return
        past.follow(layer, ids + (part.stop - 1) * row_bytes)
        if len(part) == 1:
            return
        first = max(part.start, part.stop - LAST)
        at, count = ids + first * row_bytes, part.stop - first
        if layer > 0 and before is not None and len(before.ids) == len(step.ids):
            told, _ = before.addresses
            self._chain.count(BY_LAYER, layer, told + first * row_bytes, at, count)
        if past.walk.known and count == len(part):
            was = past.walk.ids[layer].ctypes.data
            self._chain.count(BY_TOKEN, layer, was, at, 1)
        self._chain.count(BY_TOKEN, layer, at, at + row_bytes, count - 1)

    def _teach(self, step: Routed) -> None:
        alone = self._alone
        if alone is not None:
            if alone.next_layer == self._layers:
                self._popular.count(alone.walk.newest)
                self._tutor.teach(alone.walks)
            return
        parts = [(part, self._past.of(part)) for part in owned(step)]
        through = [(part, past) for part, past in parts if past.next_layer == self._layers]
        for _, past in ((part, past) for part, past in through if len(part) > 1):
            past.walk.turn()
        self._tutor.teach([past.walk for part, past in through if len(part) == 1])


class _Past:
    """Of one sequence: its last tokens, and the layer that comes next in the newest."""

    def __init__(self, chain: Chain) -> None:
        self.walk, self.next_layer = Walk(chain), 0
        self.walks = (self.walk,)
        self.teller = Teller(self.walks, chain.experts)

    def follow(self, layer: int, ids: int) -> None:
        """Take in what a layer chose, int64 [k] at address `ids`."""
        self.next_layer = layer + 1
        self.walk.follow(layer, ids)
