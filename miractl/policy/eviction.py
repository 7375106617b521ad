"""Which resident has to go, and whether the newcomer is worth it."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from miractl.policy.heat import HeatTable
from miractl.policy.keys import ExpertKey


class EvictionPolicy(Protocol):
    """Decides among residents. Told of every step, asked only when a slot is needed."""

    def record(self, layer: int, counts: npt.NDArray[np.int64], tokens: int) -> None:
        """One layer's step: `counts` [experts] tokens each, of `tokens` in all."""

    def victim(self, candidates: Sequence[ExpertKey]) -> ExpertKey:
        """The resident to give up; `candidates` is never empty."""

    def admits(self, newcomer: ExpertKey, victim: ExpertKey) -> bool:
        """Whether the newcomer may displace the victim; if not, it is computed and forgotten."""

    def feedback(self, key: ExpertKey, used: bool) -> None:
        """How a prefetch of this expert ended."""


class LeastRecentlyUsed:
    """Evicts whoever was used longest ago; admits everybody."""

    def __init__(self, layers: int, experts: int) -> None:
        self._last_used = np.zeros((layers, experts), dtype=np.int64)
        self._step = 0

    def record(self, layer: int, counts: npt.NDArray[np.int64], tokens: int) -> None:
        """Stamp the used experts with the number of this step."""
        self._step += 1
        self._last_used[layer, counts > 0] = self._step

    def victim(self, candidates: Sequence[ExpertKey]) -> ExpertKey:
        """The least recently used candidate."""
        return min(candidates, key=lambda key: self._last_used[key])

    def admits(self, newcomer: ExpertKey, victim: ExpertKey) -> bool:
        """Always."""
        return True

    def feedback(self, key: ExpertKey, used: bool) -> None:
        """Recency does not care."""


class HeatEviction:
    """Residents below the heat threshold go first, coldest first; the rest by least recent use.

    A newcomer below the threshold displaces nobody above it.
    """

    def __init__(self, heat: HeatTable, layers: int, experts: int) -> None:
        self.heat = heat
        self._recency = LeastRecentlyUsed(layers, experts)

    def record(self, layer: int, counts: npt.NDArray[np.int64], tokens: int) -> None:
        """Feed the score and the recency."""
        self.heat.activate(layer, counts, tokens)
        self._recency.record(layer, counts, tokens)

    def victim(self, candidates: Sequence[ExpertKey]) -> ExpertKey:
        """The coldest candidate below the threshold, else the least recently used one."""
        rows = {key.layer: self.heat.scores(key.layer) for key in candidates}
        threshold = self.heat.threshold
        cold = [key for key in candidates if rows[key.layer][key.expert] < threshold]
        if cold:
            return min(cold, key=lambda key: rows[key.layer][key.expert])
        return self._recency.victim(candidates)

    def admits(self, newcomer: ExpertKey, victim: ExpertKey) -> bool:
        """Unless the newcomer is cold and the victim is not."""
        threshold = self.heat.threshold
        if self.heat.scores(newcomer.layer)[newcomer.expert] >= threshold:
            return True
        return bool(self.heat.scores(victim.layer)[victim.expert] < threshold)

    def feedback(self, key: ExpertKey, used: bool) -> None:
        """Warm up what was bet on rightly, cool down what was not."""
        self.heat.feedback(key.layer, key.expert, used)
