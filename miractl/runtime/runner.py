"""One layer's step: count the routing, bet on the next layer, compute this one."""

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from miractl.policy.routing import Routed, Segment
from miractl.runtime.arena import SlotArena
from miractl.runtime.cache import ExpertCache
from miractl.runtime.mixture import PART_BYTES, mix
from miractl.runtime.prefetch import Prefetcher


class LayerRuns:
    """What every experts module of the model calls. One layer's step runs at a time."""

    def __init__(self, cache: ExpertCache, arena: SlotArena, prefetcher: Prefetcher | None) -> None:
        self.cache, self.arena, self.prefetcher = cache, arena, prefetcher
        self._one_at_a_time = threading.Lock()
        self._position = 0

    @torch.no_grad()
    def run(
        self,
        layer: int,
        module: torch.nn.Module,
        x: torch.Tensor,
        ids: torch.Tensor,
        scores: torch.Tensor,
    ) -> torch.Tensor:
        """Compute x [T, H] by ids and scores [T, k] -> [T, H]; long steps are split over tokens."""
        limit = max(1, PART_BYTES // (ids.shape[1] * x.shape[1] * x.element_size()))
        routed = ids.cpu().numpy()  # the one read-back of a layer
        with self._one_at_a_time:
            if len(routed) <= limit:
                return self._step(layer, module, x, routed, scores)
            spans = [slice(at, at + limit) for at in range(0, len(routed), limit)]
            return torch.cat([self._step(layer, module, x[s], routed[s], scores[s]) for s in spans])

    def _step(
        self,
        layer: int,
        module: torch.nn.Module,
        x: torch.Tensor,
        ids: npt.NDArray[np.int64],
        scores: torch.Tensor,
    ) -> torch.Tensor:
        self._record(layer, ids)
        then = None
        if self.prefetcher is not None:
            step = self._routed(layer, ids, scores)
            self.prefetcher.settle(step)
            then = partial(self.prefetcher.bet, step, x)
        return mix(module, x, ids, scores, self._arrivals(layer, ids, then))

    def _arrivals(
        self, layer: int, ids: npt.NDArray[np.int64], then: Callable[[], None] | None
    ) -> Iterator[tuple[int, Mapping[str, torch.Tensor]]]:
        for expert, slot in self.cache.serve(layer, np.unique(ids).tolist(), then):
            yield expert, self.arena[slot]

    def _routed(self, layer: int, ids: npt.NDArray[np.int64], scores: torch.Tensor) -> Routed:
        """The step as one sequence, which begins with every prompt."""
        if layer == 0:
            self._position = 0 if len(ids) > 1 else self._position + 1
        segment = Segment(0, 0, len(ids), self._position)
        gates = scores.float().cpu().numpy()
        return Routed(layer, ids, gates, (segment,), self.cache.counters.steps)

    def _record(self, layer: int, ids: npt.NDArray[np.int64]) -> None:
        cache = self.cache
        counts = np.bincount(ids.reshape(-1), minlength=cache.counts.activations.shape[1])
        with cache.lock:
            cache.counts.activations[layer] += counts
            cache.residency.policy.record(layer, counts, len(ids))
            if layer == 0:
                cache.counters.steps += 1
                cache.counters.tokens += len(ids)
