"""One layer's step: decide where its experts come from, and compute them."""

import threading

import numpy as np
import torch

from miractl.policy.routing import Ids, OneToken, Routed
from miractl.policy.slots import CompiledSlots
from miractl.runtime.cache import ExpertCache
from miractl.runtime.compute import Compute
from miractl.runtime.lookahead import FLOAT32, INT64, plain
from miractl.runtime.losses import Losses
from miractl.runtime.mixture import PART_BYTES
from miractl.runtime.recording import Recording
from miractl.runtime.sequences import Sequences
from miractl.runtime.stopwatch import Stopwatch

is_grad_enabled = torch.is_grad_enabled  # looked up once


class LayerRuns:
    """What every experts module of the model calls. One layer's step runs at a time."""

    def __init__(
        self,
        cache: ExpertCache,
        compute: Compute,
        sequences: Sequences,
        stopwatch: Stopwatch,
        recording: Recording | None = None,
        losses: Losses | None = None,
    ) -> None:
        self.stopwatch, self._punch = stopwatch, stopwatch.begin
        self.cache, self.compute = cache, compute
        self.sequences, self.recording = sequences, recording
        self._token: list[Routed] = []  # of each layer, where one token's routing stays
        self._top = 0  # experts of such a token
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
        if is_grad_enabled():
            with torch.no_grad():
                return self.run(layer, module, x, ids, scores)
        punch = self._punch
        punch("decide")
        with self._one_at_a_time:
            try:
                if layer == 0:
                    self._begin(ids)
                if ids.numel() == self._top:
                    return self._one(layer, module, x, ids, scores)
                return self._several(layer, module, x, ids, scores)
            except BaseException:
                self.cache.abandon()
                raise
            finally:
                punch("attention")

    def _begin(self, ids: torch.Tensor) -> None:
        """A step begins."""
        tokens, top = ids.shape
        table = self.cache.residency
        self.cache.count_step(tokens)
        # Only the library can copy a router's answer; a recording keeps what is recorded.
        if self.recording is None and isinstance(table, CompiledSlots) and top != self._top:
            self._token, self._top = OneToken(len(table.hits), top).steps, top

    def _one(
        self,
        layer: int,
        module: torch.nn.Module,
        x: torch.Tensor,
        ids: torch.Tensor,
        scores: torch.Tensor,
    ) -> torch.Tensor:
        """A step of one token, whose routing is copied to where the last one's was."""
        own, gates = plain(ids, INT64), plain(scores, FLOAT32)
        step, sequences, cache = self._token[layer], self.sequences, self.cache
        step.segments, step.step = sequences.alone, sequences.step
        different = cache.route(step, x, True, (own.data_ptr(), gates.data_ptr()))
        y = self.compute.mix(layer, module, x, step.ids, scores, different, cache.serve(step))
        if cache.lost:
            self._lose(step.ids, y, 0, 1)
        return y

    def _several(
        self,
        layer: int,
        module: torch.nn.Module,
        x: torch.Tensor,
        ids: torch.Tensor,
        scores: torch.Tensor,
    ) -> torch.Tensor:
        """As many tokens at a time as there is memory for their parts."""
        cache, recording = self.cache, self.recording
        step = self._routed(layer, ids, scores)
        limit = max(1, PART_BYTES // (step.ids.shape[1] * x.shape[1] * x.element_size()))
        if recording is not None:
            recording.record(step, limit)
        parts = []
        for rows, part, different in cache.parts(step, x, limit):
            told = x[rows], part.ids, scores[rows], different, cache.serve(part)
            parts.append(self.compute.mix(layer, module, *told))
            if cache.lost:
                self._lose(part.ids, parts[-1], rows.start or 0, len(step.ids))
        if recording is not None:
            recording.computed(cache.residency.policy.seconds)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _lose(self, ids: Ids, y: torch.Tensor, first: int, rows: int) -> None:
        """Zeros in y for tokens whose experts could not be brought, the first of a layer's `rows`.

        Raises what kept them where nobody takes losses.
        """
        of_pass = self.sequences.current[-1].stop if self.sequences.current else rows
        for expert, error in self.cache.lost.items():
            lost = np.flatnonzero((ids == expert).any(axis=1))
            y[torch.from_numpy(lost)] = 0
            self.losses.add(first + lost if rows == of_pass else range(of_pass), error)

    def _routed(self, layer: int, ids: torch.Tensor, scores: torch.Tensor) -> Routed:
        if self.recording is not None:
            scores = scores.to(torch.float16)  # as it is recorded: this decides, and computes not
        ids, scores = plain(ids, INT64), plain(scores, FLOAT32)  # read back, once
        at, sequences = (ids.data_ptr(), scores.data_ptr()), self.sequences
        own = ids.numpy()
        segments = sequences.segments(len(own))
        return Routed(layer, own, scores.numpy(), segments, sequences.step, at)
