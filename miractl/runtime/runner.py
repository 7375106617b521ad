"""One layer's step: count the routing, bet on the next layer, compute this one."""

import threading
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch

from miractl.policy.routing import Ids, Routed, Scores
from miractl.runtime.arena import SlotArena
from miractl.runtime.cache import ExpertCache
from miractl.runtime.mixture import PART_BYTES, mix
from miractl.runtime.prefetch import Prefetcher
from miractl.runtime.recording import Recording
from miractl.runtime.sequences import Sequences


class LayerRuns:
    """What every experts module of the model calls. One layer's step runs at a time."""

    def __init__(
        self,
        cache: ExpertCache,
        arena: SlotArena,
        prefetcher: Prefetcher | None,
        sequences: Sequences,
        recording: Recording | None = None,
    ) -> None:
        self.cache, self.arena, self.prefetcher = cache, arena, prefetcher
        self.sequences, self.recording = sequences, recording
        self._one_at_a_time = threading.Lock()

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
        gates = scores.float().cpu().numpy()
        with self._one_at_a_time:
            self._record(layer, routed, gates)
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
        if self.prefetcher is not None:
            self.prefetcher.after_routing(layer, x, ids)
        return mix(module, x, ids, scores, self._arrivals(layer, ids))

    def _arrivals(
        self, layer: int, ids: npt.NDArray[np.int64]
    ) -> Iterator[tuple[int, Mapping[str, torch.Tensor]]]:
        for expert, slot in self.cache.serve(layer, np.unique(ids).tolist()):
            yield expert, self.arena[slot]

    def _record(self, layer: int, ids: Ids, scores: Scores) -> None:
        cache, sequences = self.cache, self.sequences
        step = Routed(layer, ids, scores, sequences.segments(len(ids)), sequences.step)
        with cache.lock:
            cache.residency.record(step)
            if layer == 0:
                cache.counters.steps += 1
                cache.counters.tokens += len(ids)
        if self.recording is not None:
            self.recording.record(step)
