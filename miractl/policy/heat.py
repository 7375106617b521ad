"""The heat score: how much each expert has been wanted lately, in [0, 1].

Three rules feed it, a fourth reads it (the design of Mira, adaptive expert caching):

- Activation: +0.1 for each step that activates the expert, x decay for each full 100 ms without.
  A step counts once however many of its tokens chose the expert, so one long prompt cannot lift an
  expert over those that are used steadily.
- Window: at the end of each window (500 ms) the token counts of the window, divided by the largest
  count of the layer, are added with weight 0.1: frequency beyond "used or not".
- Feedback: prefetched and used +0.03, prefetched in vain -0.05.
- Threshold: residents below it go first, and a newcomer below it displaces nobody above it.

Decay is applied on reading, in closed form: a pause of an hour costs what one of 100 ms does.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

ACTIVATION = 0.1
WINDOW_WEIGHT = 0.1
PREFETCH_USED = 0.03
PREFETCH_WASTED = -0.05
DECAY_INTERVAL = 0.1  # seconds
THRESHOLD_CEILING = 0.9  # a scaled threshold stays below the score of an expert in constant use
TOKENS_EWMA = 0.05


class HeatTable:
    """Scores of all experts, [layers, experts]. Not thread-safe: its owner holds the lock."""

    def __init__(
        self,
        layers: int,
        experts: int,
        top_k: int,
        *,
        clock: Callable[[], float],
        threshold: float = 0.30,
        window: float = 0.5,
        decay: float = 0.95,
    ) -> None:
        self.base_threshold, self.window, self.decay = threshold, window, decay
        self._share = top_k / experts
        self.clock = clock  # seconds
        self._held: float | None = None  # time stands still
        self._score: Floats = np.zeros((layers, experts))
        self._since: Floats = np.full((layers, experts), clock())  # when decay began to run
        self._counts: Counts = np.zeros((layers, experts), dtype=np.int64)  # of this window
        self._window_start: float | None = None  # with the first activation
        self._tokens = 1.0  # EWMA of tokens a step

    def activate(self, rows: int | slice, counts: Counts, tokens: int) -> None:
        """Record one step of one layer, or of all at once by `slice(None)`.

        `counts` [experts] or [layers, experts]: tokens each, of `tokens` in all.
        """
        now = self.open(tokens)
        used = counts > 0
        warmed = np.minimum(1.0, self._at(now, rows) + ACTIVATION)
        np.copyto(self._score[rows], warmed, where=used)
        self._since[rows][used] = now
        self._counts[rows] += counts

    def open(self, tokens: int) -> float:
        """A step of so many tokens activates experts: the window may be over. The time now."""
        now = self._now()
        self.open_at(now, tokens)
        return now

    def open_at(self, now: float, tokens: int) -> None:
        """As `open`, at a time of the clock."""
        self._end_window(now)
        if self._window_start is None:
            self._window_start = now
        self._tokens += TOKENS_EWMA * (tokens - self._tokens)

    def hold(self, now: float) -> None:
        """Let time stand still, at a time of the clock, until `go_on`."""
        self._held = now

    def go_on(self) -> None:
        """Let time run again."""
        self._held = None

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and experts."""
        layers, experts = self._score.shape
        return layers, experts

    @property
    def counts(self) -> Counts:
        """Tokens of this window, [layers, experts]."""
        return self._counts

    @property
    def decaying(self) -> tuple[Floats, Floats, float]:
        """Scores and since when they decay, [layers, experts] each, and what 100 ms leave of them.

        Not to be written to but as `feedback` does.
        """
        return self._score, self._since, self.decay

    def feedback(self, layer: int, expert: int, used: bool, at: float | None = None) -> None:
        """Record how a prefetch of this expert ended, `at` a time of the clock or now."""
        now, where = self._now() if at is None else at, (layer, expert)
        # As `_at` and `_rebase`, which numpy does slowly for one number.
        idle = max(0.0, now - self._since.item(where))
        intervals = math.floor(idle / DECAY_INTERVAL + 1e-9)
        score = self._score.item(where) * self.decay**intervals
        score += PREFETCH_USED if used else PREFETCH_WASTED
        self._since[where] = now - (idle - DECAY_INTERVAL * intervals)
        self._score[where] = min(1.0, max(0.0, score))

    def scores(self, rows: int | slice = slice(None)) -> Floats:
        """Scores now: [layers, experts], or [experts] of one layer."""
        now = self._now()
        self._end_window(now)
        return self._at(now, rows)

    def restore(self, scores: Floats) -> None:
        """Go on from the scores of an earlier run, as if no time had passed."""
        self._score[:], self._since[:] = np.clip(scores, 0.0, 1.0), self.clock()

    @property
    def threshold(self) -> float:
        """The threshold in force, scaled with the tokens of a step.

        A step of B tokens activates a share 1 - (1 - k/E)^B of a layer's experts instead of k/E,
        so scores rise alike for all and the line between hot and cold rises with them.
        """
        if self._tokens <= 1:
            return self.base_threshold  # exactly: scores are sums of tenths
        spread = (1 - (1 - self._share) ** self._tokens) / self._share
        ceiling = max(THRESHOLD_CEILING, self.base_threshold)
        return float(min(ceiling, self.base_threshold * spread))

    def _now(self) -> float:
        return self.clock() if self._held is None else self._held

    def _at(self, now: float, where: Any) -> Floats:
        # 1e-9: 0.3 s after 0.0 is three intervals, although 0.3 / 0.1 < 3 in floating point.
        intervals = np.floor((now - self._since[where]) / DECAY_INTERVAL + 1e-9)
        result: Floats = self._score[where] * self.decay**intervals
        return result

    def _rebase(self, now: float, where: Any, score: Any) -> None:
        # Feedback and windows are no activations: the 100 ms grid of each expert keeps its phase.
        idle = now - self._since[where]
        self._since[where] = now - (idle - DECAY_INTERVAL * np.floor(idle / DECAY_INTERVAL + 1e-9))
        self._score[where] = score

    def _end_window(self, now: float) -> None:
        """Add what the window has counted, if it is over."""
        if self._window_start is None or now - self._window_start < self.window:
            return
        largest = self._counts.max(axis=1, keepdims=True)
        gain = WINDOW_WEIGHT * self._counts / np.maximum(largest, 1)
        self._rebase(now, slice(None), np.minimum(1.0, self._at(now, slice(None)) + gain))
        self._counts[:] = 0
        self._window_start = now


def heat_for(
    layers: int,
    experts: int,
    top_k: int,
    parameters: Mapping[str, Any],
    clock: Callable[[], float],
) -> HeatTable:
    """A table by the parameters of a profile."""
    return HeatTable(
        *(layers, experts, top_k),
        clock=clock,
        threshold=parameters["cache_threshold"],
        window=parameters["prediction_window_ms"] / 1000,
        decay=parameters["heat_decay_factor"],
    )
