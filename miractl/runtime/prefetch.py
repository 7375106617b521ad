"""Bets: what the next layers may want is staged before their routers have spoken, if it pays.

A layer's step goes: routed, `settle` what had been bet on it, demand what is missing, and `bet` on
the layers after it, while the demands are under way. The gate (miractl/native/bets.py) is given
times as they are measured here: of a transfer by the queue, of the layers by their pace.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from miractl.native.bets import Bets, BetsState, Moment
from miractl.policy.bets import Pace
from miractl.policy.keys import ExpertKey
from miractl.policy.prediction import Predictor, confident, is_prompt
from miractl.policy.residency import Role
from miractl.policy.routing import Routed
from miractl.runtime.cache import ExpertCache
from miractl.runtime.transfer import State


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
        layers, experts = cache.counts.activations.shape
        state = BetsState(layers, experts, cache.residency.staging_limit, classes=2 * horizon)
        self.bets, self._pace = Bets(state), Pace(layers)
        self._cache, self._confidence, self._horizon = cache, confidence, horizon
        self._clock, self._began = clock, clock()

    def settle(self, step: Routed) -> None:
        """What became of the bets on this layer, before its experts are asked for."""
        cache, queue = self._cache, self._cache.transfers
        now, transfer = self._clock(), queue.seconds_each
        used = np.unique(step.ids).tolist()
        wanted = np.zeros(self.bets.state.experts, np.uint8)
        wanted[used] = 1
        self._pace.mark(step.layer, now, queue.stats.waited_seconds, is_prompt(step))
        gained = lost = 0.0
        with cache.lock:
            residency = cache.residency
            keys = [ExpertKey(step.layer, expert) for expert in used]
            fetch = not all(residency.has(key, Role.RESIDENT) for key in keys)
            for key, ticket in cache.tickets.items():
                if ticket.state is State.QUEUED:
                    continue
                if key.layer == step.layer and wanted[key.expert]:
                    gained += min(transfer, (ticket.finished_at or now) - ticket.began_at)
                elif ticket.state is State.RUNNING and fetch:
                    lost = max(lost, transfer - (now - ticket.began_at))
            cache.drop_bets(step.layer, wanted)
        if transfer:
            self.bets.judge(step.layer, wanted, fetch, transfer)
            self.bets.account(gained, lost, transfer)

    def bet(self, step: Routed, hidden: Any) -> None:
        """Learn from the layer, then bet on those after it; `hidden` [tokens, H] entered it."""
        self.predictor.observe(step, hidden)
        layers, prompt = self.bets.state.layers, is_prompt(step)
        compute = self._pace.until(step.layer + 1, prompt) if step.layer + 1 < layers else None
        transfer = self._cache.transfers.seconds_each
        if compute is None:
            return
        demands, bets = self._cache.transfers.pending
        at = Moment(
            layer=step.layer,
            room=0,
            elapsed=self._clock() - self._began,
            link=(demands + bets) * transfer,
            gate=demands * transfer + compute,
            transfer=transfer,
            compute=compute,
        )
        for ahead in range(1, self._horizon + 1):
            # Who has to be looked for further ahead than that has time enough later.
            if step.layer + ahead >= layers or (ahead > 1 and transfer < (ahead - 1) * compute):
                return
            guess = self.predictor.guess(ahead)
            if guess is None:
                return
            at.layer, at.ahead = step.layer + ahead, ahead
            at.kind = ahead - 1 + prompt * self._horizon
            with self._cache.lock:
                there = self._cache.residency.present(at.layer, len(guess))
                at.room = self._cache.room_for_bets()
            chosen = self.bets.choose(at, confident(guess, self._confidence), there)
            self._cache.bet(at.layer, [(expert, float(guess[expert])) for expert in chosen])
