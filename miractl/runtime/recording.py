"""What the routers decide, step by step, on its way into a file."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from miractl.errors import MiractlError
from miractl.plan.pools import PoolPlan
from miractl.policy.guessing import MODES
from miractl.policy.keys import NOBODY
from miractl.policy.prediction import Predictor
from miractl.policy.routing import Routed
from miractl.runtime.cache import ExpertCache
from miractl.runtime.tape import Kind, TapedClock, TapedGuesses, WrittenTape, confirm
from miractl.runtime.taped_link import TapedLink
from miractl.runtime.transfer import Transfers
from miractl.telemetry.recorder import MOST_BYTES, Recorder
from miractl.telemetry.served import COUNTS, NUMBERS, Served
from miractl.units import format_bytes

if TYPE_CHECKING:
    from miractl.runtime.engine import Engine, EngineOptions
    from miractl.runtime.outline import Outline

log = logging.getLogger(__name__)


class Recording:
    """Collects the layers of a step for a recorder, and on `tape` what decisions are told.

    Padding is left out. A step is passed on when the next one begins, with what the cache has
    counted by then. An error of the disk ends the recording with one line in the log, and nothing
    else.
    """

    def __init__(self, recorder: Recorder, layers: int, clock: Callable[[], float]) -> None:
        self._recorder: Recorder | None = recorder
        self._layers = layers
        self._tape = WrittenTape()
        self.clock = TapedClock(self._tape, clock)
        self._cache: ExpertCache | None = None
        self._about: dict[str, Any] = {}  # for the meta of the trace
        self._step: list[Routed] = []
        self._seconds: list[float] = []  # of the layers that are through
        self._lost: str | None = None  # why the decisions cannot be repeated

    def link(self, transfers: Transfers) -> Transfers:
        """The link to decide by."""
        return TapedLink(self._tape, self.clock, transfers.chunks, transfers)

    def guesses(self, predictor: Predictor, experts: int) -> Predictor:
        """The predictor to decide by; one that goes by the routing alone repeats itself."""
        if predictor.mode in MODES:
            return predictor
        return TapedGuesses(self._tape, predictor.mode, experts, predictor)

    def begin(self, cache: ExpertCache, served: Served) -> None:
        """Before the first step: who counts, and how is decided."""
        self._cache, self._about = cache, {"served": served.to_json()}

    def record(self, step: Routed, limit: int) -> None:
        """One layer, in order, before it is decided; `limit` tokens of it are computed at once."""
        if step.layer == 0:
            if self._step and self._recorder is not None and not self._end_step():
                self._lost = self._lost or "a step failed"
            self._step, self._seconds = [], []
        if self._recorder is None:
            self._tape.numbers.clear()
            return
        self._step.append(step)
        confirm(self._tape, Kind.LAYER, step.layer, limit)

    def computed(self, seconds: float) -> None:
        """The layer that was recorded is through; the heat was told of it at `seconds`."""
        self._seconds.append(seconds)

    def close(self) -> None:
        """Write the file; a step under way is left out."""
        if self._recorder is not None:
            self._end_step()
        self._finish(is_told=False)

    def _end_step(self) -> bool:
        """Pass the step on; False if it has not come to its end."""
        recorder = self._recorder
        assert recorder is not None
        if not len(self._seconds) == len(self._step) == self._layers:
            return False
        try:
            self._write(recorder)
        except OSError as error:
            log.error("cannot record to %s any more: %s", recorder.path, error.strerror)
            self._finish(is_told=True)
        return True

    def _finish(self, is_told: bool) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        try:
            tokens = recorder.finish({**self._about, "lost": self._lost}, tape=self._lost is None)
        except MiractlError as error:
            if not is_told:
                log.error("%s", error.message)
        else:
            log.info("recorded %d tokens to %s", tokens, recorder.path)

    def _write(self, recorder: Recorder) -> None:
        numbers = np.array(self._tape.numbers, np.int64)
        self._tape.numbers.clear()
        known = [segment for segment in self._step[0].segments if segment.sequence != NOBODY]
        rows = np.concatenate([np.arange(s.start, s.stop) for s in known] or [np.arange(0)])
        if len(rows) < len(self._step[0].ids):
            self._lost = self._lost or "it is not known whose some tokens were"
        if not known or recorder.full:
            return
        lengths = [len(segment) for segment in known]
        sequences = np.repeat([segment.sequence for segment in known], lengths)
        positions = np.concatenate([s.position + np.arange(len(s)) for s in known])
        recorder.add(
            sequences,
            positions,
            np.stack([layer.ids[rows] for layer in self._step], axis=1),
            np.stack([layer.scores[rows] for layer in self._step], axis=1),
            np.array(self._seconds),
            numbers,
        )
        if not recorder.full:
            assert self._cache is not None
            self._about["counts"] = totals(self._cache)
            return
        log.warning(
            "%s has reached %s: nothing more is recorded", recorder.path, format_bytes(MOST_BYTES)
        )


def recorder_for(options: "EngineOptions", outline: "Outline", plan: PoolPlan) -> Recorder | None:
    """Of the routing of this model, if asked for. Raises MiractlError if it cannot be written."""
    if options.record_trace is None:
        return None
    layers = list(outline.layers)
    meta = {
        "model": options.model_id,
        "moe_layers": len(layers),
        "layer_indices": layers,
        "expert_bytes": plan.expert_bytes,
    }
    if len(plan.pools) == 1:  # a replay divides slots of one size
        meta |= {"slots": plan.slots, "ways": list(plan.ways)}
    return Recorder(options.record_trace, len(layers), outline.experts, outline.top_k, meta)


def served_by(engine: "Engine") -> Served:
    """How an engine decides."""
    options, prefetcher = engine.options, engine.prefetcher
    memory = options.warm_heat
    return Served(
        policy=engine.policy,
        ways=engine.cache.residency.ways,
        staged=engine.plan.staging_limit,
        chunks=engine.cache.transfers.chunks,
        prediction=None if prefetcher is None else prefetcher.predictor.mode,
        host=engine.supply.host,
        beside=engine.supply.tier is not None,
        warm=memory is not None and memory.exists(),
        parameters={name: options.parameters[name] for name in NUMBERS},
    )


def totals(cache: ExpertCache) -> dict[str, int]:
    """All that decisions have come to since the start, by the names of `COUNTS`."""
    table, counters = cache.residency, cache.counters
    of_table = {
        "hits": int(table.hits.sum()),
        "misses": int(table.misses.sum()),
        "evictions": table.evictions,
        "bypassed": table.bypassed,
    }
    return of_table | {name: getattr(counters, name) for name in COUNTS if name not in of_table}
