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
from miractl.policy.prediction import Predictor, Telling
from miractl.policy.routing import Routed
from miractl.runtime.cache import ExpertCache


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
        self.go_by(predictor)
        table = cache.residency
        assert isinstance(table, ResidencyTable)  # as there is the library
        sizes = *table.hits.shape, table.staging_limit
        chunks = cache.transfers.chunks
        self.bets = Bets(BetsState(*sizes, classes=2 * horizon, chunks=chunks))
        self.ahead = Ahead(self.bets, table, horizon, confidence, clock())
        self._cache, cache.bets = cache, self
        self._reach, self._clock = range(1, horizon + 1), clock

    def go_by(self, predictor: Predictor) -> None:
        """Whose guesses are bet on."""
        self.predictor = predictor
        self._tell = predictor.teller if isinstance(predictor, Telling) else None

    def bet(self, step: Routed, hidden: Any) -> None:
        """Learn from the layer, then bet on those after it; `hidden` [tokens, H] entered it.

        There are none where they take too long to decide on. The caller holds the cache's lock.
        """
        predictor, tell, ahead, clock = self.predictor, self._tell, self.ahead, self._clock
        teller = None if tell is None else tell(step)
        if teller is None:
            predictor.observe(step, hidden)
        if ahead.skips:
            if teller is not None:
                ahead.follow(teller, (step.at or step.addresses)[0])
            return
        began, cache = clock(), self._cache
        queue = cache.transfers
        each = queue.seconds_each
        demands, under_way = queue.pending
        ahead.begin(began, each, demands, under_way)
        for layers in self._reach:
            # A transfer that takes less than the layers between can be begun later.
            if layers > 1 and each < (layers - 1) * ahead.compute[0]:
                break
            if layers == 1 and teller is not None:
                guess, placed = teller.guess, ahead.follow(teller, (step.at or step.addresses)[0])
            elif (found := predictor.guess(layers)) is not None:
                guess, placed = found, ahead.place(layers, found)
            elif layers == 1:  # no layer comes after this: what that takes says nothing
                return
            else:
                break
            if placed:
                cache.issue(step.layer + layers, placed, guess)
        ahead.took = clock() - began
