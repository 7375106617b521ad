"""The replays in plain Python: the same decisions as the C code, slowly. The oracle of its tests.

Heat is replayed by the runtime's own objects on a clock that the replay moves.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from miractl.native.replay import Admission, Cache, Kind, Outcome, Routing, Rule
from miractl.policy.allocation import Allocation
from miractl.policy.heat import HeatTable

Floats = npt.NDArray[np.float64]
NEVER = -1e18
HOT = 2.0


class Worth(Protocol):
    """What an expert is worth; told of each token and layer, in order."""

    table: Floats  # [layers, experts]

    def observe(self, token: int, layer: int) -> None:
        """Update the table with what this token asks of this layer."""


class Recency:
    """LRU."""

    def __init__(self, routing: Routing) -> None:
        self.table = np.zeros((routing.layers, routing.experts))
        self._routing = routing

    def observe(self, token: int, layer: int) -> None:
        """Stamp the used."""
        step = token * self._routing.layers + layer + 1
        self.table[layer, self._routing.ids[token, layer]] = step


class Frequency:
    """LFU with decay."""

    def __init__(self, routing: Routing, decay: float) -> None:
        self.table = np.zeros((routing.layers, routing.experts))
        self._routing, self._decay = routing, decay

    def observe(self, token: int, layer: int) -> None:
        """Fade all, count the used."""
        self.table[layer] *= self._decay
        self.table[layer, self._routing.ids[token, layer]] += 1


class Foresight:
    """Belady's optimum: minus the step of the next use."""

    def __init__(self, routing: Routing) -> None:
        self.table = np.zeros((routing.layers, routing.experts))
        self._routing = routing

    def observe(self, token: int, layer: int) -> None:
        """Look the used up in the rest of the recording."""
        coming = self._routing.ids[token + 1 :, layer]
        for expert in self._routing.ids[token, layer]:
            found = np.flatnonzero((coming == expert).any(axis=1))
            after = token + 1 + int(found[0]) if len(found) else None
            worth = NEVER if after is None else -float(after * self._routing.layers + layer)
            self.table[layer, expert] = worth


class Heat:
    """The runtime's heat score; above the threshold the least recently used goes first."""

    def __init__(self, routing: Routing, rule: Rule) -> None:
        self.table = np.zeros((routing.layers, routing.experts))
        self._routing, self._rule, self._now = routing, rule, 0.0
        self._recency = Recency(routing)
        self._heat = HeatTable(
            *(routing.layers, routing.experts, routing.top),
            clock=lambda: self._now,
            threshold=rule.threshold,
            window=rule.window_seconds,
            decay=rule.decay,
        )

    def observe(self, token: int, layer: int) -> None:
        """Activate at the token's time, read everybody's score."""
        self._now = token * self._rule.token_seconds
        counts = np.bincount(self._routing.ids[token, layer], minlength=self._routing.experts)
        self._heat.activate(layer, counts, 1)
        self._recency.observe(token, layer)
        scores = self._heat.scores()
        self.table = np.where(scores < self._heat.threshold, scores, HOT + self._recency.table)


def worth_of(routing: Routing, rule: Rule) -> Worth:
    """The worth by a rule. Raises ValueError for random: its draws are the library's."""
    makers: dict[Kind, Callable[[], Worth]] = {
        Kind.LRU: lambda: Recency(routing),
        Kind.LFU: lambda: Frequency(routing, rule.decay),
        Kind.BELADY: lambda: Foresight(routing),
        Kind.HEAT: lambda: Heat(routing, rule),
    }
    if rule.kind not in makers:
        raise ValueError(f"Got {rule.kind.name} but expected one of {[k.name for k in makers]}")
    return makers[rule.kind]()


def replay(routing: Routing, cache: Cache, worth: Worth) -> Outcome:
    """Replay from a cold cache, as `miractl.native.replay.replay` does."""
    held: set[tuple[int, int]] = set()  # (layer, expert)
    shares = None
    if cache.shifts and not cache.pooled:
        shares = Allocation(cache.ways, [routing.experts] * routing.layers)
    hits = np.zeros(routing.ids.shape, np.uint8)
    entered = np.zeros(routing.layers, np.int64)
    for token in range(routing.tokens):
        if shares is not None and shares.begin():
            cache = _shift(held, cache, shares, worth.table)
        for layer in range(routing.layers):
            keys = [(layer, int(expert)) for expert in routing.ids[token, layer]]
            hits[token, layer] = [key in held for key in keys]
            if shares is not None:
                row = np.array([[(layer, e) in held for e in range(routing.experts)]])
                own, size = worth.table[layer : layer + 1], int(row.sum())
                for _, expert in keys:
                    shares.count(layer, size, own, row, 0, expert)
            worth.observe(token, layer)
            for key, hit in zip(keys, hits[token, layer], strict=True):
                if not hit and _enter(held, key, keys, cache, worth.table):
                    entered[layer] += 1
    return Outcome(hits, entered)


def _shift(held: set[tuple[int, int]], cache: Cache, shares: Allocation, worth: Floats) -> Cache:
    """Move a way between layers if it pays; who has to go for it goes."""
    sizes = [sum(layer == at for layer, _ in held) for at in range(len(cache.ways))]
    giver = shares.move(range(len(sizes)), sizes, [0] * len(sizes))
    if giver is not None and sizes[giver] > shares.ways[giver]:
        members = sorted(one for one in held if one[0] == giver)
        held.remove(min(members, key=lambda one: worth[one]))
    return replace(cache, ways=tuple(shares.ways))


def _enter(
    held: set[tuple[int, int]],
    key: tuple[int, int],
    needed: list[tuple[int, int]],
    cache: Cache,
    worth: Floats,
) -> bool:
    """Make room for an absent expert and move it in; False if it has to stay out."""
    members = sorted(held if cache.pooled else (one for one in held if one[0] == key[0]))
    if len(members) >= cache.ways[0 if cache.pooled else key[0]]:
        may_go_in_use = cache.admission is Admission.WORTHIER
        candidates = [one for one in members if may_go_in_use or one not in needed]
        if not candidates:
            return False
        victim = min(candidates, key=lambda one: worth[one])
        if cache.admission is Admission.WORTHIER and worth[key] < worth[victim]:
            return False
        if cache.admission is Admission.HOTTER and worth[key] < HOT <= worth[victim]:
            return False
        held.remove(victim)
    held.add(key)
    return True
