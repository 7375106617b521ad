"""Bets: what the next layers may want is staged before their routers have spoken, if it pays.

A layer's step goes: routed, what had been bet on it settled, what is missing demanded, and then
`bet` on the layers after it, while the demands are under way. The gate (miractl/native/bets.py) is
given times as they are measured: of a transfer by the queue, of the layers by their pace.
"""

from collections.abc import Callable
from typing import Any

from miractl.native.ahead import Ahead
from miractl.native.bets import Bets, BetsState
from miractl.native.residency import ResidencyTable
from miractl.policy.prediction import Predictor
from miractl.policy.routing import Routed
from miractl.runtime.cache import ExpertCache

RATE = 0.05  # weight of the newest layer in what deciding takes
SKIPS = 63  # layers without bets before deciding is tried and timed again


class Prefetcher:
    """Turns guesses into bets. Called by the layer that runs, one at a time."""

    def __init__(
        self,
        cache: ExpertCache,
        predictor: Predictor,
        *,
        confidence: float,
        horizon: int,
        clock: Callable[[], float],
    ) -> None:
        """From now on the cache bets by it."""
        self.predictor = predictor
        table = cache.residency
        assert isinstance(table, ResidencyTable)  # as there is the library
        sizes = *table.hits.shape, table.staging_limit
        chunks = cache.transfers.chunks
        self.bets = Bets(BetsState(*sizes, classes=2 * horizon, chunks=chunks))
        self.ahead = Ahead(self.bets, table, horizon, confidence, clock())
        self._cache, cache.bets = cache, self
        self._reach, self._clock = range(1, horizon + 1), clock
        self._deciding = 0.0  # seconds that it takes to bet; 0: not known yet
        self._skipped = 0

    def bet(self, step: Routed, hidden: Any) -> None:
        """Learn from the layer, then bet on those after it; `hidden` [tokens, H] entered it.

        Where deciding takes longer than all that is missing would be waited for, there are none.
        """
        predictor, ahead, deciding = self.predictor, self.ahead, self._deciding
        predictor.observe(step, hidden)
        if ahead.stall < deciding and self._skipped < SKIPS:
            self._skipped += 1
            return
        clock, cache = self._clock, self._cache
        self._skipped, began, queue = 0, clock(), cache.transfers
        each = queue.seconds_each
        ahead.begin(began, each, *queue.pending)
        for layers in self._reach:
            # A transfer that takes less than the layers between can be begun later.
            if layers > 1 and each < (layers - 1) * ahead.times.at.compute:
                break
            guess = predictor.guess(layers)
            if guess is None:
                break
            with cache.lock:
                placed = ahead.place(layers, guess)
                if placed:
                    cache.issue(step.layer + layers, placed, guess)
        seconds = clock() - began
        # A pause of the thread looks like long deciding: down at once, up slowly.
        slowly = deciding + RATE * (seconds - deciding) if deciding else seconds
        self._deciding = min(seconds, slowly)
