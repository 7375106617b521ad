"""What decides for a cache: an eviction policy, and the heat that is kept whatever the policy."""

from dataclasses import replace

import numpy as np

from miractl.native.heat import HeatWarming
from miractl.native.library import available
from miractl.policy.eviction import EvictionPolicy
from miractl.policy.heat import HeatTable
from miractl.policy.keys import ExpertKey
from miractl.policy.memory import Memory
from miractl.policy.routing import Routed


class Brain:
    """An eviction policy, and the heat that every engine keeps whatever its policy."""

    def __init__(self, eviction: EvictionPolicy, heat: HeatTable) -> None:
        self.eviction, self.heat = eviction, heat
        self.admission, self.worth = eviction.admission, eviction.worth
        self.shifts, self._warms, self.rule = eviction.shifts, eviction.warms, eviction.rule
        self._record, self._leave, self._clock = eviction.record, eviction.leave, heat.clock
        self.last, self.learn = len(self.worth) - 1, eviction.learn
        self._is_left = eviction.rule is not None and not eviction.shifts  # to the library
        self.activations = np.zeros(self.worth.shape, np.int64)  # tokens, since the start
        self._felt = self.activations.copy()  # those that the heat knows of
        told = heat.decaying, heat.counts, self.activations, self._felt
        self._warming = HeatWarming(*told) if available() and not self._warms else None
        self.seconds = heat.clock()  # of its clock, when the last layer was recorded
        none = np.zeros_like(self.activations)
        self._recalled = Memory(np.zeros_like(self.worth), none)  # of earlier runs

    def record(self, step: Routed, now: float | None = None) -> bool:
        """Count the tokens, then `rate`."""
        row = self.activations[step.layer]
        row += np.bincount(step.ids.reshape(-1), minlength=len(row))
        return self.rate(step, now)

    def leave(self, step: Routed, now: float) -> int:
        """Let the library rate the layer next, which counts its tokens too: what it goes by.

        0, and nothing done, where `rate` has to: see `EvictionPolicy.leave`.
        """
        self.seconds, leave = now, self._leave
        return leave(step, now) if self._is_left else 0

    def end(self, step: Routed, now: float) -> int:
        """The last layer is left to the library, too: what the heat warms up by, 0 if it is warm.

        Then the policy has to `learn`.
        """
        if self._warming is None:
            return 0
        self.heat.open_at(now, len(step.ids))
        return self._warming.address

    def rate(self, step: Routed, now: float | None = None) -> bool:
        """Warm up what was used and let the policy know, all at one moment, `now`.

        The tokens are counted. Whether the worth of other layers has changed too.
        """
        self.seconds = self._clock() if now is None else now
        if not (self._warms or step.layer == self.last):
            return self._record(step)
        self.heat.hold(self.seconds)
        try:
            if not self._warms:
                self._warm(len(step.ids))
            return self._record(step)
        finally:
            self.heat.go_on()

    def feedback(self, key: ExpertKey, used: bool) -> None:
        """Warm up what was bet on rightly, cool down what was not; as of the last record."""
        self.heat.feedback(key.layer, key.expert, used, self.seconds)

    def remember(self) -> Memory:
        """What the next run may start with; what others had learned stays in it."""
        tables = {**self._recalled.tables, **self.eviction.tables()}
        return replace(
            self._recalled,
            heat=self.heat.scores(),
            activations=self.activations + self._recalled.activations,
            tables=tables,
        )

    def recall(self, memory: Memory) -> None:
        """Start from an earlier run. Raises ValueError for tables that do not fit."""
        self.heat.restore(memory.heat)
        self.eviction.recall(memory.tables)
        self._recalled = memory

    def close(self) -> None:
        """Stop what runs beside."""
        self.eviction.close()

    def _warm(self, tokens: int) -> None:
        if self._warming is not None:
            self._warming.warm(self.heat.open(tokens))
            return
        self.heat.activate(slice(None), self.activations - self._felt, tokens)
        self._felt[:] = self.activations
