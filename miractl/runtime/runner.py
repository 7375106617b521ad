"""One layer's step: count the routing, bet on the next layer, compute this one."""

import threading
from collections.abc import Callable

import numpy as np
import torch

from miractl.policy.routing import Ids, Routed
from miractl.runtime.cache import ExpertCache
from miractl.runtime.compute import Compute
from miractl.runtime.lookahead import plain
from miractl.runtime.losses import Losses
from miractl.runtime.mixture import PART_BYTES
from miractl.runtime.prefetch import Prefetcher
from miractl.runtime.recording import Recording
from miractl.runtime.sequences import Sequences
from miractl.runtime.stopwatch import Stopwatch


class LayerRuns:
    """What every experts module of the model calls. One layer's step runs at a time."""

    def __init__(
        self,
        cache: ExpertCache,
        compute: Compute,
        prefetcher: Prefetcher | None,
        sequences: Sequences,
        stopwatch: Stopwatch,
        recording: Recording | None = None,
        losses: Losses | None = None,
    ) -> None:
        self.stopwatch, self._punch = stopwatch, stopwatch.begin
        self.cache, self.compute, self.prefetcher = cache, compute, prefetcher
        self.sequences, self.recording = sequences, recording
        self.losses = losses or Losses()
        self._one_at_a_time = threading.Lock()

    def run(
        self,
        layer: int,
        module: torch.nn.Module,
        x: torch.Tensor,
        ids: torch.Tensor,
        scores: torch.Tensor,
    ) -> torch.Tensor:
        """Compute x [T, H] by ids and scores [T, k] -> [T, H]; long steps are split over tokens."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.run(layer, module, x, ids, scores)
        punch = self._punch
        punch("decide")
        try:
            with self._one_at_a_time:
                step = self._record(layer, x, ids, scores)
                then = None if self.prefetcher is None else self._settle(self.prefetcher, step, x)
                if len(step.ids) > 1:
                    result = self._split(module, x, step, scores, then)
                else:
                    result = self._step(module, x, step, scores, then)
                    if self.cache.lost:
                        self._lose(step.ids, result, 0, 1)
                if self.recording is not None:
                    self.recording.computed()
                return result
        finally:
            punch("attention")

    @staticmethod
    def _settle(prefetcher: Prefetcher, step: Routed, x: torch.Tensor) -> Callable[[], None]:
        """Settle the bets on the layer; what bets on those after it."""
        prefetcher.settle(step)
        bet = prefetcher.bet

        def then() -> None:
            bet(step, x)

        return then

    def _split(
        self,
        module: torch.nn.Module,
        x: torch.Tensor,
        step: Routed,
        scores: torch.Tensor,
        then: Callable[[], None] | None,
    ) -> torch.Tensor:
        """As many tokens at a time as there is memory for their parts."""
        parts = []
        for rows, part in step.parts(self._limit(step, x)):
            parts.append(self._step(module, x[rows], part, scores[rows], then))
            if self.cache.lost:
                self._lose(part.ids, parts[-1], rows.start or 0, len(step.ids))
            then = None
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _step(
        self,
        module: torch.nn.Module,
        x: torch.Tensor,
        step: Routed,
        scores: torch.Tensor,
        then: Callable[[], None] | None,
    ) -> torch.Tensor:
        """Some of the step's tokens; `then` is called when their demands are on their way."""
        ids = step.ids
        flat = ids.tolist()[0] if len(ids) == 1 else ids.reshape(-1).tolist()
        groups = self.cache.serve(step, then)
        return self.compute.mix(step.layer, module, x, ids, scores, len(set(flat)), groups)

    def _lose(self, ids: Ids, y: torch.Tensor, first: int, rows: int) -> None:
        """Zeros in y for tokens whose experts could not be brought, the first of a layer's `rows`.

        Raises what kept them where nobody takes losses.
        """
        of_pass = self.sequences.current[-1].stop if self.sequences.current else rows
        for expert, error in self.cache.lost.items():
            lost = np.flatnonzero((ids == expert).any(axis=1))
            y[torch.from_numpy(lost)] = 0
            self.losses.add(first + lost if rows == of_pass else range(of_pass), error)

    @staticmethod
    def _limit(step: Routed, x: torch.Tensor) -> int:
        """Tokens that there is memory for."""
        limit: int = max(1, PART_BYTES // (step.ids.shape[1] * x.shape[1] * x.element_size()))
        return limit

    def _record(
        self, layer: int, x: torch.Tensor, ids: torch.Tensor, scores: torch.Tensor
    ) -> Routed:
        cache, sequences = self.cache, self.sequences
        if self.recording is not None:
            scores = scores.to(torch.float16)  # as it is recorded: this decides, and computes not
        ids, scores = plain(ids, torch.int64), plain(scores, torch.float32)  # read back, once
        at = ids.data_ptr(), scores.data_ptr()
        own = ids.numpy()
        segments = sequences.segments(len(own))
        step = Routed(layer, own, scores.numpy(), segments, sequences.step, at)
        with cache.lock:
            cache.residency.record(step)
        if layer == 0:
            cache.count_step(len(own))
        if self.recording is not None:
            self.recording.record(step, cache.residency.policy.seconds, self._limit(step, x))
        return step
