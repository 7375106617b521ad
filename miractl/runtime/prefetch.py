"""Bets: what the next layers may want is staged before their routers have spoken, if it pays.

A layer's step goes: routed, `settle` what had been bet on it, demand what is missing, and `bet` on
the layers after it, while the demands are under way. The gate (miractl/native/bets.py) is given
times as they are measured here: of a transfer by the queue, of the layers by their pace.
"""

from collections.abc import Callable
from typing import Any

from miractl.native.bets import Bets, BetsState, Moment
from miractl.native.residency import ResidencyTable
from miractl.policy.bets import Pace
from miractl.policy.prediction import Predictor, is_prompt
from miractl.policy.routing import Routed
from miractl.runtime.cache import ExpertCache

RATE = 0.05  # weight of the newest layer in what is missing and what deciding takes
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
        layers, experts = cache.residency.hits.shape
        state = BetsState(layers, experts, cache.residency.staging_limit, classes=2 * horizon)
        self.bets, self._pace = Bets(state), Pace(layers)
        assert isinstance(cache.residency, ResidencyTable)  # as there is the library
        self._table = cache.residency
        self._cache, self._horizon = cache, horizon
        self._clock, self._began = clock, clock()
        self._is_prompt = False
        self._moment = Moment(confidence=confidence)
        self._missing = 0.0  # experts of a layer that were not resident
        self._deciding: float | None = None  # seconds that it takes to bet
        self._skipped = 0

    def settle(self, step: Routed) -> None:
        """What became of the bets on this layer, before its experts are asked for."""
        cache, queue, layer = self._cache, self._cache.transfers, step.layer
        now, transfer = self._clock(), queue.seconds_each
        self._is_prompt = is_prompt(step)
        self._pace.mark(layer, now, queue.stats.waited_seconds, self._is_prompt)
        queue.poll()
        with cache.lock:
            if self._skipped and not self._table.staged:
                transfer = 0.0  # there were no bets to judge
            ids, _ = step.addresses
            found = self.bets.settle(self._table, layer, ids, step.ids.size, now, transfer)
            self._missing += RATE * (found.missing - self._missing)
            if found.unwanted:
                cache.cancel_bets(layer, self._table.unwanted(found.unwanted))

    def bet(self, step: Routed, hidden: Any) -> None:
        """Learn from the layer, then bet on those after it; `hidden` [tokens, H] entered it.

        Where bringing all that is missing takes less than deciding on bets, there are none.
        """
        self.predictor.observe(step, hidden)
        saves = self._missing * self._cache.transfers.seconds_each
        if self._deciding is not None and saves < self._deciding and self._skipped < SKIPS:
            self._skipped += 1
            return
        self._skipped, began = 0, self._clock()
        self._decide(step, began)
        seconds, before = self._clock() - began, self._deciding
        self._deciding = seconds if before is None else before + RATE * (seconds - before)

    def _decide(self, step: Routed, now: float) -> None:
        layers, prompt = self.bets.state.layers, self._is_prompt
        compute = self._pace.until(step.layer + 1, prompt) if step.layer + 1 < layers else None
        if compute is None:
            return
        queue = self._cache.transfers
        transfer, (demands, bets) = queue.seconds_each, queue.pending
        at = self._moment
        at.elapsed, at.promised = now - self._began, 0.0
        at.link, at.gate = (demands + bets) * transfer, demands * transfer + compute
        at.transfer, at.compute = transfer, compute
        for ahead in range(1, self._horizon + 1):
            # A transfer that takes less than the layers between can be begun later.
            if step.layer + ahead >= layers or (ahead > 1 and transfer < (ahead - 1) * compute):
                return
            guess = self.predictor.guess(ahead)
            if guess is None:
                return
            at.layer, at.ahead = step.layer + ahead, ahead
            at.kind = ahead - 1 + prompt * self._horizon
            with self._cache.lock:
                placed = self.bets.place(self._table, at, guess)
                if placed:
                    self._cache.issue(at.layer, placed, guess)
