"""Markov tables: what followed an expert in the next layer, and at the next token.

Ids of neighbouring layers are unrelated, so the tables are learned from the stream itself: the
first tokens fill them, every later one updates them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from miractl.policy.prediction import LAST, Popularity, Probabilities, is_prompt, owned, union
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
        shape = (layers, experts, experts)
        self._by_layer: Counts = np.full(shape, PRIOR, np.float32)
        self._by_token: Counts = np.full(shape, PRIOR, np.float32)
        self._popular = Popularity(layers, experts, top_k)
        self._experts, self._layers = experts, layers
        self._past: Streams[dict[int, Ids]] = Streams(dict)  # layer -> experts [k] of a token
        self._before: tuple[int, Ids] | None = None  # layer and ids of the step
        self._step: Routed | None = None

    def observe(self, step: Routed, hidden: Any = None) -> None:
        """Count what followed whom."""
        before, self._before = self._before, (step.layer, step.ids)
        self._step = step
        self._popular.observe(step)
        paired = before is not None and before[0] == step.layer - 1
        for part in owned(step):
            if before is not None and paired and len(before[1]) == len(step.ids):
                rows = slice(max(part.start, part.stop - LAST), part.stop)
                self._count(self._by_layer[step.layer], before[1][rows], step.ids[rows])
            self._count_tokens(step, part)

    def guess(self, ahead: int) -> Probabilities | None:
        """By both tables for new tokens, by popularity for prompts."""
        step = self._step
        if step is None or step.layer + ahead >= self._layers:
            return None
        if is_prompt(step):
            return self._popular.guess(ahead)
        parts = owned(step)
        return union(np.stack([self._follow(step, p, ahead) for p in parts])) if parts else None

    def fade(self) -> None:
        """Halve what was counted; the prior stays."""
        for table in (self._by_layer, self._by_token):
            table -= (table - PRIOR) / 2
        self._popular.fade()

    def _follow(self, step: Routed, part: Segment, ahead: int) -> npt.NDArray[np.float64]:
        wanted = np.zeros(self._experts)
        wanted[step.ids[part.stop - 1]] = 1
        for layer in range(step.layer + 1, step.layer + ahead + 1):
            used = np.flatnonzero(wanted)
            rows = self._by_layer[layer][used]
            wanted = np.minimum(1, wanted[used] / rows.sum(axis=1) @ rows)
        past = self._past.of(part).get(step.layer + ahead)
        if past is None:
            return wanted
        rows = self._by_token[step.layer + ahead][past]
        again = np.minimum(1, (rows / rows.sum(axis=1, keepdims=True)).sum(axis=0))
        result: npt.NDArray[np.float64] = OF_LAYER * wanted + (1 - OF_LAYER) * again
        return result

    def _count_tokens(self, step: Routed, part: Segment) -> None:
        past = self._past.begin(part) if step.layer == 0 else self._past.of(part)
        rows = step.ids[max(part.start, part.stop - LAST) : part.stop]
        known = past.get(step.layer)
        if known is not None and len(rows) == len(part):
            rows = np.concatenate([known[None], rows])
        self._count(self._by_token[step.layer], rows[:-1], rows[1:])
        past[step.layer] = rows[-1]

    @staticmethod
    def _count(table: npt.NDArray[np.float32], before: Ids, after: Ids) -> None:
        """Count pairs of the same row, [tokens, k] each, in one layer's table."""
        if not len(before):
            return
        np.add.at(table, (before[:, :, None], after[:, None, :]), 1)
        rows = before.reshape(-1)
        full = rows[table[rows].sum(axis=1) > MOST_COUNTS * after.shape[1]]
        table[full] *= 0.5
