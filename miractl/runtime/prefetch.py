"""Bets: what the next layers may want is staged before their routers have spoken, if it pays.

A layer's step goes: routed, `settle` what had been bet on it, demand what is missing, and `bet` on
the layers after it, while the demands are under way. The gate (miractl/native/bets.py) is given
times as they are measured: of a transfer by the queue, of the layers by their pace.
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
        self.predictor = predictor
        table = cache.residency
        assert isinstance(table, ResidencyTable)  # as there is the library
        sizes = *table.hits.shape, table.staging_limit
        chunks = cache.transfers.chunks
        self.bets = Bets(BetsState(*sizes, classes=2 * horizon, chunks=chunks))
        self.ahead = Ahead(self.bets, table, horizon, confidence, clock())
        self._cache, self._table = cache, table
        self._reach, self._clock = range(1, horizon + 1), clock
        self._deciding = 0.0  # seconds that it takes to bet; 0: not known yet
        self._skipped = 0

    def settle(self, step: Routed) -> None:
        """What became of the bets on this layer, before its experts are asked for."""
        cache, ahead = self._cache, self.ahead
        queue, times = cache.transfers, ahead.times
        queue.poll()
        times.now, times.waited = self._clock(), queue.stats.waited_seconds
        times.transfer, times.prompt = queue.seconds_each, len(step.ids) > len(step.segments)
        times.spent, times.computed = cache.spent, cache.computed
        with cache.lock:
            unwanted = ahead.settle()
            if unwanted:
                cache.cancel_bets(step.layer, self._table.unwanted(unwanted))

    def bet(self, step: Routed, hidden: Any) -> None:
        """Learn from the layer, then bet on those after it; `hidden` [tokens, H] entered it.

        Where deciding takes longer than all that is missing would be waited for, there are none.
        """
        predictor, cache, deciding = self.predictor, self._cache, self._deciding
        predictor.observe(step, hidden)
        times, queue, clock = self.ahead.times, cache.transfers, self._clock
        each = queue.seconds_each
        if times.stall < deciding and self._skipped < SKIPS:
            self._skipped += 1
            return
        self._skipped, began = 0, clock()
        times.now, times.transfer = began, each
        times.demands, times.under_way = queue.pending
        for ahead in self._reach:
            # A transfer that takes less than the layers between can be begun later.
            if ahead > 1 and each < (ahead - 1) * times.at.compute:
                break
            guess = predictor.guess(ahead)
            if guess is None:
                break
            with cache.lock:
                placed = self.ahead.place(ahead, guess)
                if placed:
                    cache.issue(step.layer + ahead, placed, guess)
        seconds = clock() - began
        # A pause of the thread looks like long deciding: down at once, up slowly.
        slowly = deciding + RATE * (seconds - deciding) if deciding else seconds
        self._deciding = min(seconds, slowly)
