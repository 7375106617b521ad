"""What the routers decide, step by step, on its way into a file."""

import logging
from typing import TYPE_CHECKING

import numpy as np

from miractl.errors import MiractlError
from miractl.plan.pools import PoolPlan
from miractl.policy.keys import NOBODY
from miractl.policy.routing import Routed
from miractl.telemetry.recorder import MOST_BYTES, Recorder
from miractl.units import format_bytes

if TYPE_CHECKING:
    from miractl.runtime.engine import EngineOptions
    from miractl.runtime.outline import Outline

log = logging.getLogger(__name__)


class Recording:
    """Collects the layers of a step for a recorder. Padding is left out.

    An error of the disk ends the recording with one line in the log, and nothing else.
    """

    def __init__(self, recorder: Recorder, layers: int) -> None:
        self._recorder: Recorder | None = recorder
        self._layers = layers
        self._step: list[Routed] = []
        self._seconds: list[float] = []

    def record(self, step: Routed, seconds: float) -> None:
        """One layer, in order, known at `seconds`."""
        if self._recorder is None:
            return
        if step.layer == 0:
            self._step.clear()
            self._seconds.clear()
        self._step.append(step)
        self._seconds.append(seconds)
        if len(self._step) == self._layers:
            try:
                self._write(self._recorder)
            except OSError as error:
                log.error("cannot record to %s any more: %s", self._recorder.path, error.strerror)
                self.close()

    def close(self) -> None:
        """Write the file."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        try:
            tokens = recorder.finish()
        except MiractlError as error:
            log.error("%s", error.message)
        else:
            log.info("recorded %d tokens to %s", tokens, recorder.path)

    def _write(self, recorder: Recorder) -> None:
        known = [segment for segment in self._step[0].segments if segment.sequence != NOBODY]
        if not known or recorder.full:
            return
        rows = np.concatenate([np.arange(s.start, s.stop) for s in known])
        lengths = [len(segment) for segment in known]
        sequences = np.repeat([segment.sequence for segment in known], lengths)
        positions = np.concatenate([s.position + np.arange(len(s)) for s in known])
        recorder.add(
            sequences,
            positions,
            np.stack([layer.ids[rows] for layer in self._step], axis=1),
            np.stack([layer.scores[rows] for layer in self._step], axis=1),
            np.array(self._seconds),
        )
        if recorder.full:
            log.warning(
                "%s has reached %s: nothing more is recorded",
                *(recorder.path, format_bytes(MOST_BYTES)),
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
