"""Markov tables: what followed an expert in the next layer, and at the next token.

Ids of neighbouring layers are unrelated, so the tables are learned from the stream itself: the
first tokens fill them, every later one updates them.
"""

from typing import Any

from miractl.native.chain import BY_LAYER, BY_TOKEN, Chain, Walk
from miractl.native.teller import Teller
from miractl.native.tutor import Tutor
from miractl.policy.prediction import LAST, Popularity, Probabilities, Tables, owned, put_back
from miractl.policy.routing import Routed, Segment
from miractl.policy.streams import Streams
from miractl.policy.tellers import Tellers

PRIOR = 0.5  # pseudo-count of each transition: an unseen pair is unlikely, not impossible
OF_LAYER = 0.9  # weight of the layer before; more of the token before only blurs it
MOST_AHEAD = 8  # layers
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
        self._walks = Streams(lambda: (Walk(self._chain),))
        self._tellers: Tellers[Walk] = Tellers(layers, experts, top_k, MOST_AHEAD)
        self._tutor = Tutor()
        self._before: Routed | None = None  # the layer before

    def observe(self, step: Routed, hidden: Any = None) -> None:
        """Follow the step; at its last layer what followed whom begins to be counted.

        Raises ValueError for experts that do not exist.
        """
        if step.layer == 0:
            self._begin(step)
        tellers = self._tellers
        tellers.follow(step)
        if tellers.is_prompt:
            self._popular.observe(step)
            if tellers.knows:
                self._count(step)
            self._before = step
        if step.layer == self._layers - 1:
            self._teach(step)

    def teller(self, step: Routed) -> Teller[Walk] | None:
        """Who follows a layer of new tokens, but for the outermost layers."""
        return self._tellers.hand_over(step)

    def guess(self, ahead: int) -> Probabilities | None:
        """By both tables for new tokens, by popularity for prompts. Overwritten by the next."""
        tellers = self._tellers
        return self._popular.guess(ahead) if tellers.is_prompt else tellers.guess(ahead)

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
        """Take a step in: of a prompt the last token is followed."""
        self._tutor.wait()
        self._before, parts = None, owned(step)
        walks = [self._walks.begin(part) for part in parts]
        self._tellers.begin(step, walks, [part.stop - 1 for part in parts])

    def _count(self, step: Routed) -> None:
        """Count the ends of prompts."""
        for part in owned(step):
            if len(part) > 1:
                self._count_end(step, part)

    def _count_end(self, step: Routed, part: Segment) -> None:
        (walk,), (ids, _) = self._walks.of(part), step.addresses
        row_bytes, layer = step.ids.strides[0], step.layer
        first = max(part.start, part.stop - LAST)
        at, count = ids + first * row_bytes, part.stop - first
        if self._before is not None:
            told, _ = self._before.addresses
            self._chain.count(BY_LAYER, layer, told + first * row_bytes, at, count)
        if walk.known and count == len(part):
            self._chain.count(BY_TOKEN, layer, walk.ids[layer].ctypes.data, at, 1)
        self._chain.count(BY_TOKEN, layer, at, at + row_bytes, count - 1)

    def _teach(self, step: Routed) -> None:
        tellers = self._tellers
        if not tellers.is_prompt:
            for walk in tellers.pupils:
                self._popular.count(walk.newest)
            self._tutor.teach(tellers.pupils)
            return
        through = list(zip(owned(step), tellers.pupils, strict=False))
        for walk in (walk for part, walk in through if len(part) > 1):
            walk.turn()
        self._tutor.teach([walk for part, walk in through if len(part) == 1])
