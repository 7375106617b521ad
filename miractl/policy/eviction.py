"""What each resident is worth, which decides who has to go and whether a newcomer may stay.

A policy keeps a table of worth, changed when it is told of a step; who goes is found by
`miractl.policy.residency`. The replay in C (`miractl/native/src/rules.c`) has the same rules.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from miractl.native.deciding import Rule, Stamp
from miractl.native.heat import HeatRating
from miractl.native.replay import Admission
from miractl.policy.heat import HeatTable
from miractl.policy.routing import Routed

Floats = npt.NDArray[np.float64]
Tables = npt.NDArray[np.float32]
HOT = 2.0  # with Admission.HOTTER: worth of this or more is above the threshold


class EvictionPolicy(Protocol):
    """Told of every layer of every step, before anyone is looked up."""

    admission: Admission
    worth: Floats  # [layers, experts], finite
    shifts: bool  # slots move between layers that do not share them
    warms: bool  # it tells the heat of what was used, in every layer

    @property
    def rule(self) -> Rule | None:
        """By which the library may rate; None: by none."""

    def record(self, step: Routed) -> bool:
        """Take in a layer's routing; whether the worth of other layers has changed too."""

    def leave(self, step: Routed, now: float) -> int:
        """Leave the layer to the library, which rates it next: the address of what it goes by.

        0, and nothing done: `record` has to. `now` on the heat's clock.
        """

    def learn(self) -> None:
        """All layers of a step are rated, the last one by the library; `record` does it itself."""

    def tables(self) -> Mapping[str, Tables]:
        """What was learned and is worth keeping, by name."""

    def recall(self, tables: Mapping[str, Tables]) -> None:
        """Start from what an earlier run learned. Raises ValueError if it does not fit."""

    def close(self) -> None:
        """Stop what runs beside."""


class _Table:
    """A table of worth and nothing that runs beside."""

    admission = Admission.ALWAYS
    shifts = False
    warms = False
    rule: Rule | None = None

    def __init__(self, layers: int, experts: int) -> None:
        self.worth: Floats = np.zeros((layers, experts))

    def leave(self, step: Routed, now: float) -> int:
        """It cannot be left."""
        return 0

    def learn(self) -> None:
        """There is nothing to learn."""

    def tables(self) -> Mapping[str, Tables]:
        """Nothing is learned."""
        return {}

    def recall(self, tables: Mapping[str, Tables]) -> None:
        """Nothing to recall."""

    def close(self) -> None:
        """Nothing to stop."""


class LeastRecentlyUsed(_Table):
    """Worth is the number of the last step that used the expert."""

    rule: Rule | None = Rule.STAMP

    def __init__(self, layers: int, experts: int) -> None:
        super().__init__(layers, experts)
        self._stamp = Stamp(self.worth)

    def record(self, step: Routed) -> bool:
        """Stamp the used experts."""
        self.worth[step.layer, step.ids] = self._stamp.next()
        return False

    def leave(self, step: Routed, now: float) -> int:
        """As the protocol says."""
        stamp = self._stamp
        stamp.next()
        return stamp.address


class LeastOftenUsed(_Table):
    """Worth is how many tokens used the expert, fading by `decay` a token."""

    def __init__(self, layers: int, experts: int, decay: float = 0.95) -> None:
        super().__init__(layers, experts)
        self._decay = decay

    def record(self, step: Routed) -> bool:
        """Fade all, count the used."""
        row = self.worth[step.layer]
        row *= self._decay ** len(step.ids)
        row += np.bincount(step.ids.reshape(-1), minlength=len(row))
        return False


class Anybody(_Table):
    """Worth is drawn anew in every step."""

    def __init__(self, layers: int, experts: int, seed: int = 0) -> None:
        super().__init__(layers, experts)
        self._random = np.random.default_rng(seed)

    def record(self, step: Routed) -> bool:
        """Draw."""
        self._random.random(out=self.worth[step.layer])
        return False


class Static(_Table):
    """Worth never changes: what an earlier run used most stays, others pass through."""

    admission = Admission.WORTHIER

    def __init__(self, wanted: Floats) -> None:
        """`wanted` [layers, experts]: how often each was used."""
        super().__init__(*wanted.shape)
        self.worth[:] = wanted

    def record(self, step: Routed) -> bool:
        """Nothing is learned."""
        return False


class HeatEviction(_Table):
    """Residents below the heat threshold go first, coldest first; the rest by least recent use.

    A newcomer below the threshold displaces nobody above it.
    """

    admission = Admission.HOTTER
    warms = True

    def __init__(self, heat: HeatTable, layers: int, experts: int) -> None:
        super().__init__(layers, experts)
        self._heat = heat
        self._recency = LeastRecentlyUsed(layers, experts)

    def record(self, step: Routed) -> bool:
        """Warm up the used, then read the scores.

        Of all layers when a step begins, since time has passed for everyone.
        """
        counts = np.bincount(step.ids.reshape(-1), minlength=self.worth.shape[1])
        self._heat.activate(step.layer, counts, len(step.ids))
        self._recency.record(step)
        rows = slice(None) if step.layer == 0 else step.layer
        scores, used = self._heat.scores(rows), self._recency.worth[rows]
        self.worth[rows] = np.where(scores < self._heat.threshold, scores, HOT + used)
        return step.layer == 0


class CompiledHeat(_Table):
    """The same in C, to the last rounding of a power."""

    admission = Admission.HOTTER
    warms = True
    rule = Rule.HEAT

    def __init__(self, heat: HeatTable, layers: int, experts: int) -> None:
        """Raises MiractlError without the library."""
        super().__init__(layers, experts)
        self._heat = heat
        (score, since, decay), used = heat.decaying, np.zeros_like(self.worth)
        self._rating = HeatRating(decay, score, since, heat.counts, used, self.worth)

    def record(self, step: Routed) -> bool:
        """As `HeatEviction` does."""
        self._open(step, self._heat.open(len(step.ids)))
        if not self._rating.record(step.layer, step.addresses[0], step.ids.size):
            raise ValueError(f"Got ids {step.ids.tolist()} of {self.worth.shape[1]} experts")
        return step.layer == 0

    def leave(self, step: Routed, now: float) -> int:
        """As the protocol says."""
        self._heat.open_at(now, len(step.ids))
        self._open(step, now)
        return self._rating.address

    def _open(self, step: Routed, now: float) -> None:
        rating = self._rating
        rating.now, rating.threshold = now, self._heat.threshold
        rating.stamp += 1
