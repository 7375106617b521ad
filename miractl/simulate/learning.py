"""The learner in numpy: the same scores to the last bit as the C code, slowly.

The oracle of its tests, and its description: read it beside miractl/native/src/learner.c.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from miractl.native.learner import AVERAGES, CONTEXTS, COUNTS, FEATURES, LearnerState
from miractl.native.replay import Routing

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[Any]  # [k]
F = np.float32

REPEAT, TRAIL, CROSS = range(COUNTS)
TRAIL_DECAYS = (F(0), F(0.8), F(0.8))
SPANS = (5, 20, 100, 1000)  # tokens
GATE_RATE = F(0.25)
MOST_COUNTS = F(4096)
FAINT, FAINT_TRAIL = F(2**-40), F(2**-10)
CONTEXT_TOKEN = (0, 0, 0, 0, 0, 1, 1, 1)
CONTEXT_LAYER = (0, -1, -2, -3, -4, 0, 1, 2)
LOG_TERMS = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
EXP_TERMS = (
    *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2),
    *(1.6666665459e-1, 5.0000001201e-1),
)


def logarithms(x: Floats) -> Floats:
    """ln(x + 0.004) + 2."""
    value = x + F(0.004)
    bits = value.view(np.int32)
    exponent = (bits - 0x3F3504F3) >> 23
    m = (bits - exponent * (1 << 23)).view(np.float32) - F(1)
    square = m * m
    p = np.full_like(m, LOG_TERMS[0])
    for term in LOG_TERMS[1:]:
        p = p * m + F(term)
    ln = m + (p * m * square - F(0.5) * square)
    result: Floats = exponent.astype(np.float32) * F(0.69314718056) + ln + F(2)
    return result


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x))."""
    v = np.clip(-x, F(-30), F(30))
    whole = v * F(1.44269504089) + F(12582912) - F(12582912)
    r = v - whole * F(0.693359375)
    r = r - whole * F(-2.12194440e-4)
    p = np.full_like(r, EXP_TERMS[0])
    for term in EXP_TERMS[1:]:
        p = p * r + F(term)
    p = p * (r * r) + r + F(1)
    power = ((whole.astype(np.int32) + 127) * (1 << 23)).view(np.float32)
    result: Floats = F(1) / (F(1) + p * power)
    return result


def product(x: Floats, y: Floats) -> np.float32:
    """Sum of products in eight partial sums, as vectors add them."""
    parts = np.zeros(8, np.float32)
    for chunk in (x * y).reshape(-1, 8):
        parts += chunk
    total = F(0)
    for part in parts:
        total += part
    return total


def fade(values: Floats, keep: np.float32, faintest: np.float32 = FAINT) -> None:
    """Let values from 0 fade, in place; what is below `faintest` is gone."""
    values *= keep
    values[values < faintest] = 0


def descend(x: Floats, sums: Floats, gradient: Floats, rate: float) -> None:
    """One AdaGrad step in place."""
    sums += gradient * gradient
    x -= F(rate) * gradient / np.sqrt(sums)


class ReferenceLearner:
    """Learns as `miractl.native.learner.Learner` does, on a state of its own."""

    def __init__(self, state: LearnerState) -> None:
        self.state = state

    def record(self, layer: int, ids: Ids, probabilities: Floats, starts: bool = False) -> None:
        """One token's routing of one layer; layers in order."""
        s = self.state
        if layer == 0:
            s.token += 1
            s.starts[self._place(s.token)] = starts or s.token == 0
        s.ids[self._place(s.token), layer] = ids
        self._average(layer, ids, probabilities)
        self._describe(layer, ids)
        s.scores[layer] = self._score(s.token, layer)
        if layer == s.layers - 1:
            self._update()

    def _place(self, token: int) -> int:
        return token % (self.state.window + 2)

    def _context(self, token: int, layer: int, c: int) -> Ids:
        s, other = self.state, layer + CONTEXT_LAYER[c]
        outside = not 0 <= other < s.layers
        if outside or (CONTEXT_TOKEN[c] and s.starts[self._place(token)]):
            return np.empty(0, np.uint16)
        ids: Ids = s.ids[self._place(token - CONTEXT_TOKEN[c]), other]
        return ids

    def _update(self) -> None:
        s = self.state
        for layer in range(s.layers):
            ids = s.ids[self._place(s.token), layer]
            self._follow(REPEAT, layer, ids, ids)
            self._follow(TRAIL, layer, ids, ids)
            if layer > 0:
                self._follow(CROSS, layer, s.ids[self._place(s.token), layer - 1], ids)
        if s.token >= s.window:
            for layer in range(s.layers):
                self._learn(s.token - s.window, layer)

    def _follow(self, kind: int, layer: int, fresh: Ids, ids: Ids) -> None:
        s = self.state
        trail = s.trails[kind, layer]
        if s.starts[self._place(s.token)]:
            trail[:] = 0
        else:
            before = np.flatnonzero(trail)
            s.totals[kind, layer] += trail
            s.counts[kind, layer][np.ix_(before, ids)] += trail[before, None]
            full = np.flatnonzero(s.totals[kind, layer] >= MOST_COUNTS)
            s.totals[kind, layer, full] *= F(0.5)
            s.counts[kind, layer, full] *= F(0.5)
        fade(trail, TRAIL_DECAYS[kind], FAINT_TRAIL)
        trail[fresh] += 1

    def _average(self, layer: int, ids: Ids, probabilities: Floats) -> None:
        s = self.state
        for row, span in zip(s.averages[layer], SPANS, strict=True):
            rate = max(F(1) / F(span), F(1) / F(s.token + 8))
            fade(row, F(1) - rate)
            row[ids] += rate
        fade(s.gate[layer], F(1) - GATE_RATE)
        total = F(0)
        for probability in probabilities:
            total += probability
        gain = GATE_RATE * F(s.top) * probabilities / total if 0 < total < math.inf else GATE_RATE
        s.gate[layer, ids] += gain

    def _expect(self, kind: int, layer: int, before: Ids) -> Floats:
        s = self.state
        x = np.zeros(s.lanes, np.float32)
        for expert in before:
            share = F(1) / F(s.top) / s.totals[kind, layer, expert]
            x += share * s.counts[kind, layer, expert]
        return x

    def _describe(self, layer: int, ids: Ids) -> None:
        s = self.state
        x = s.features[self._place(s.token), layer]
        x[:AVERAGES] = s.averages[layer]
        x[AVERAGES] = self._expect(REPEAT, layer, ids)
        x[AVERAGES + 1] = x[AVERAGES + 2] = self._expect(TRAIL, layer, ids)
        if layer > 0:
            x[AVERAGES + 2] = self._expect(CROSS, layer, s.ids[self._place(s.token), layer - 1])
        x[: AVERAGES + 3] = logarithms(x[: AVERAGES + 3])
        x[AVERAGES + 3] = s.gate[layer]
        x[AVERAGES + 4] = 1

    def _score(self, token: int, layer: int) -> Floats:
        s = self.state
        z: Floats = s.bias[layer].copy()
        self._add_rows(z, token, layer, 1)
        for weight, x in zip(s.weights, s.features[self._place(token), layer], strict=True):
            z += weight * x
        self._add_rows(z, token, layer, 0)
        return z

    def _add_rows(self, z: Floats, token: int, layer: int, before: int) -> None:
        """Those of this token's contexts, or of the token `before`."""
        for c in range(CONTEXTS):
            for expert in self._context(token, layer, c) if CONTEXT_TOKEN[c] == before else ():
                z += self.state.table[layer, c, expert]

    def _judge(self, token: int, layer: int) -> Floats:
        s = self.state
        y = np.zeros(s.lanes, np.float32)
        worth = F(1)
        for ahead in range(1, s.window + 1):
            ids = s.ids[self._place(token + ahead), layer]
            y[ids] = np.where(y[ids] == 0, worth, y[ids])
            worth *= F(s.discount)
        return y

    def _learn(self, token: int, layer: int) -> None:
        s = self.state
        r = sigmoid(self._score(token, layer)) - self._judge(token, layer)
        r[s.experts :] = 0
        features = s.features[self._place(token), layer]
        steps = [product(r, features[f]) / F(s.experts) for f in range(FEATURES)]
        descend(s.weights, s.weight_sums, np.array(steps, np.float32), s.weight_rate)
        descend(s.bias[layer], s.bias_sums[layer], r, s.table_rate)
        for c in range(CONTEXTS):
            for expert in self._context(token, layer, c):
                rows, sums = s.table[layer, c, expert], s.table_sums[layer, c, expert]
                descend(rows, sums, r, s.table_rate)


class LearnedWorth:
    """The learner's score as worth in a reference replay.

    Layers are scored in turn, and what an older score foresees has come nearer since.
    """

    def __init__(self, routing: Routing, state: LearnerState) -> None:
        self.table = np.zeros((routing.layers, routing.experts))
        self._routing, self._learner = routing, ReferenceLearner(state)

    def observe(self, token: int, layer: int) -> None:
        """Learn, and take over the layer's scores."""
        r = self._routing
        ids, probabilities = r.ids[token, layer], r.probabilities[token, layer]
        self._learner.record(layer, ids, probabilities, bool(r.starts[token]))
        state = self._learner.state
        nearer = (token + layer / r.layers) * math.log(float(F(state.discount)))
        self.table[layer] = state.scores[layer, : r.experts] + nearer
