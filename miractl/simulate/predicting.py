"""The next-layer predictor in numpy: the same scores to the last bit as the C code, slowly.

The oracle of its tests, and its description: read it beside miractl/native/src/predictor.c.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from miractl.native.predictor import HINTS, SOURCES, PredictorState
from miractl.simulate.learning import descend, logarithms, product, sigmoid

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[Any]  # [k]
F = np.float32

RATES = (F(0.4), F(0.125), F(0.025), F(0.001))  # of the averages, a token
MOST_COUNTS = F(4096)


class ReferencePredictor:
    """Predicts as `miractl.native.predictor.Predictor` does, on a state of its own."""

    def __init__(self, state: PredictorState) -> None:
        self.state = state

    def begin(self, starts: bool = False) -> None:
        """Begin a token."""
        s = self.state
        s.token += 1
        s.begins = int(starts or s.token == 0)

    def predict(self, layer: int) -> None:
        """Set the layer's scores from what came before, the token before first."""
        s = self.state
        x = s.hints[layer]
        x[:SOURCES] = s.averages[layer]
        for number in range(SOURCES):
            x[SOURCES + number] = self._expect(layer, number, x[SOURCES + number - 1])
        x[: 2 * SOURCES] = logarithms(x[: 2 * SOURCES])
        x[2 * SOURCES] = 1
        z = np.zeros(s.lanes, np.float32)
        of_token, of_layers = (
            (range(1), range(SOURCES + 1)),
            (range(1, SOURCES), range(SOURCES + 1, HINTS)),
        )
        for numbers, hints in (of_token, of_layers):
            for hint in hints:
                z += s.weights[hint] * x[hint]
            for number in numbers:
                for expert in self._source(layer, number):
                    z += s.table[layer, number, expert]
        s.scores[layer] = z

    def confirm(self, layer: int, ids: Ids) -> None:
        """Take in what the layer chose, and with the last layer learn from all."""
        s = self.state
        s.ids[s.token & 1, layer] = ids
        if layer == s.layers - 1:
            for each in range(s.layers):
                self._study(each, s.ids[s.token & 1, each].copy())

    def _study(self, layer: int, ids: Ids) -> None:
        s = self.state
        self._learn(layer, ids)
        for number, row in enumerate(s.averages[layer]):
            for expert in self._source(layer, number):
                self._count(s.totals[layer, number], s.counts[layer, number], expert, ids)
            rate = max(RATES[number], F(1) / F(s.token + 8))
            row *= F(1) - rate
            row[ids] += rate

    def _source(self, layer: int, number: int) -> Ids:
        s = self.state
        ids: Ids = np.empty(0, np.uint16)
        if number == 0 and not s.begins:
            ids = s.ids[(s.token - 1) & 1, layer].copy()
        other = layer - s.ahead + 1 - number
        if number > 0 and other >= 0:
            ids = s.ids[s.token & 1, other].copy()
        return ids

    def _expect(self, layer: int, number: int, otherwise: Floats) -> Floats:
        s, source = self.state, self._source(layer, number)
        if not len(source):
            return otherwise
        x = np.zeros(s.lanes, np.float32)
        for expert in source:
            share = F(1) / F(s.top) / s.totals[layer, number, expert]
            x += share * s.counts[layer, number, expert]
        return x

    @staticmethod
    def _count(totals: Floats, counts: Floats, expert: int, ids: Ids) -> None:
        totals[expert] += 1
        counts[expert, ids] += 1
        if totals[expert] >= MOST_COUNTS:
            totals[expert] *= F(0.5)
            counts[expert] *= F(0.5)

    def _learn(self, layer: int, ids: Ids) -> None:
        s = self.state
        y = np.zeros(s.lanes, np.float32)
        y[ids] = 1
        r = sigmoid(s.scores[layer]) - y
        r[s.experts :] = 0
        steps = [product(r, s.hints[layer, h]) / F(s.experts) for h in range(HINTS)]
        descend(s.weights, s.weight_sums, np.array(steps, np.float32), s.weight_rate)
        for number in range(SOURCES):
            for expert in self._source(layer, number):
                rows, sums = s.table[layer, number, expert], s.table_sums[layer, number, expert]
                descend(rows, sums, r, s.table_rate)
