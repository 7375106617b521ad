"""How long decoding takes with experts in two places: simulated step by step.

A device keeps some experts in sets of slots, layer l in set l mod N, replaced as LRU. The others
are in the host's memory and are brought over one link, or computed by the host. All three work at
the same time; within a layer the slowest decides, and layers follow each other. An expert takes as
long for many tokens as for one: reading its weights is what takes time in decoding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain

import numpy as np
import numpy.typing as npt

from miractl.native.replay import Routing
from miractl.policy.keys import ExpertKey
from miractl.policy.placement import Missing, Place, Rates, place

Seconds = npt.NDArray[np.float64]


class Misses(Enum):
    """What becomes of an expert that has no slot."""

    OFFLOAD = "brought over the link, waited for, computed by the device"
    FILL = "computed by the host, and always sent for; waited for if wanted before it is there"
    HOST = "computed by the host, and sent for if the link is idle"
    CHEAPER = "whatever is done sooner, as the runtime decides it; by the host as HOST"


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: of one expert on the device, the host and the link; and what is always due.

    `layer` is a layer's attention and router, `step` what stands outside of layers.
    """

    device: float
    host: float
    link: float
    layer: float = 0.0
    step: float = 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """What a simulation found: counts, and seconds.

    Of `lookups`, `hits` were on the device and `late` on their way; `host` were computed there,
    `moved` sent over the link. Busy times are those of all steps together.
    """

    step_seconds: Seconds  # [steps]
    lookups: int
    hits: int
    late: int
    host: int
    moved: int
    device_busy: float
    host_busy: float
    link_busy: float

    @property
    def hit_rate(self) -> float:
        """Share of the lookups that found their expert on the device."""
        return self.hits / self.lookups

    @property
    def seconds(self) -> float:
        """Mean of a step."""
        return float(self.step_seconds.mean())

    @property
    def p95(self) -> float:
        """What 95 % of the steps take at most, to the nearest step."""
        return float(np.quantile(self.step_seconds, 0.95, method="higher"))

    @property
    def overlapped(self) -> float:
        """Mean of a step if every transfer had been foreseen: the busiest decides."""
        busiest = max(self.device_busy, self.host_busy, self.link_busy)
        return busiest / len(self.step_seconds)


def covering(layers: int, sets: int, ways: int) -> tuple[int, ...]:
    """Ways of each layer where the first `sets` layers have a set each, and the others none."""
    return (ways,) * min(sets, layers) + (0,) * max(0, layers - sets)


def simulate(
    routing: Routing, ways: tuple[int, ...], misses: Misses, costs: Costs, batch: int = 1
) -> Timing:
    """Decode a recording from a cold cache.

    Args:
        routing: cut into `batch` streams of equal length that step together.
        ways: slots of each set; layer l is in set l mod len(ways).
        misses: what becomes of absent experts.
        costs: seconds.
        batch: sequences that a step gives a token each.

    Raises ValueError for sets that do not suit or fewer tokens than sequences.
    """
    if not ways or min(ways) < 0:
        raise ValueError(f"Got ways {ways} but expected a number from 0 for each set")
    steps = routing.tokens // max(1, batch)
    if batch < 1 or steps < 1:
        raise ValueError(f"Got {batch} sequences of {routing.tokens} tokens")
    streams = routing.ids[: steps * batch].reshape(batch, steps, routing.layers, routing.top)
    machine, ends = _Machine(ways, misses, costs), np.empty(steps)
    for step in range(steps):
        now = streams[:, step].tolist()  # [batch][layers][top]
        for layer in range(routing.layers):
            machine.layer(
                layer, list(dict.fromkeys(chain.from_iterable(row[layer] for row in now)))
            )
        machine.pass_time(costs.step)
        ends[step] = machine.now
    return machine.timing(np.diff(ends, prepend=0.0))


@dataclass(slots=True)
class _Slot:
    used: int
    arrives: float


@dataclass(slots=True)
class _Machine:
    """State between layers. Times are seconds from the start."""

    ways: tuple[int, ...]
    misses: Misses
    costs: Costs
    now: float = 0.0
    link_free: float = 0.0
    turn: int = 0
    lookups: int = 0
    hits: int = 0
    late: int = 0
    host: int = 0
    moved: int = 0
    device_busy: float = 0.0
    sets: list[dict[ExpertKey, _Slot]] = field(init=False)
    rates: Rates = field(init=False)

    def __post_init__(self) -> None:
        self.sets = [{} for _ in self.ways]
        self.rates = Rates()
        self.rates.copy, self.rates.host_expert = self.costs.link, self.costs.host

    def pass_time(self, seconds: float) -> None:
        """The device is busy with something other than experts."""
        self.now += seconds
        self.device_busy += seconds

    def layer(self, layer: int, experts: list[int]) -> None:
        """One layer of one step that asks for `experts`, each once."""
        self.pass_time(self.costs.layer)
        self.turn += 1
        ready, waiting, absent = self._look_up(layer, experts)
        left = self._left(waiting, absent)
        arrivals = [arrives for key, arrives in waiting.items() if key not in left]
        arrivals += [self._send(key) for key in absent if key not in left]
        if self.misses is not Misses.OFFLOAD:
            self._fill([key for key in absent if key in left])
        self._compute(ready, arrivals, len(left))

    def _look_up(
        self, layer: int, experts: list[int]
    ) -> tuple[int, dict[ExpertKey, float], list[ExpertKey]]:
        """How many are there, when those under way arrive, and who is absent."""
        held = self.sets[layer % len(self.ways)]
        ready, waiting, absent = 0, dict[ExpertKey, float](), list[ExpertKey]()
        for expert in experts:
            key = ExpertKey(layer, expert)
            slot = held.get(key)
            if slot is None:
                absent.append(key)
                continue
            slot.used = self.turn
            if slot.arrives <= self.now:
                ready += 1
            else:
                waiting[key] = slot.arrives
        self.lookups += len(experts)
        self.hits += ready
        self.late += len(waiting)
        return ready, waiting, absent

    def _left(
        self, waiting: Mapping[ExpertKey, float], absent: Sequence[ExpertKey]
    ) -> set[ExpertKey]:
        """The experts that the host computes, of those that are under way or absent."""
        if self.misses is Misses.OFFLOAD:
            return set()
        if self.misses is Misses.FILL:
            return set(absent)
        if self.misses is Misses.HOST:
            return {*waiting, *absent}
        missing = [Missing(key, 1, arrives - self.now) for key, arrives in waiting.items()]
        missing += [Missing(key, 1) for key in absent]
        chosen = place(missing, max(0.0, self.link_free - self.now), self.rates)
        return {key for key, where in chosen.items() if where is Place.HOST}

    def _fill(self, keys: Sequence[ExpertKey]) -> None:
        """Bring experts that the host computes into the cache, for later."""
        for key in keys:
            busy = self.misses is not Misses.FILL and self.link_free > self.now
            if busy or not self._has_room(key):
                return
            self._send(key)

    def _send(self, key: ExpertKey) -> float:
        """Send an expert over the link, to stay if there is room; when it arrives."""
        self.link_free = max(self.link_free, self.now) + self.costs.link
        self.moved += 1
        if self._has_room(key):
            number = key[0] % len(self.ways)
            held = self.sets[number]
            if len(held) == self.ways[number]:
                del held[min(self._victims(number), key=lambda one: (held[one].used, one))]
            held[key] = _Slot(self.turn, self.link_free)
        return self.link_free

    def _has_room(self, key: ExpertKey) -> bool:
        """Whether the set has a free slot, or one that nobody needs now."""
        number = key[0] % len(self.ways)
        return len(self.sets[number]) < self.ways[number] or bool(self._victims(number))

    def _victims(self, number: int) -> list[ExpertKey]:
        return [key for key, slot in self.sets[number].items() if slot.used < self.turn]

    def _compute(self, ready: int, waiting: list[float], by_host: int) -> None:
        """Advance to the end of the layer's experts."""
        end = self.now + ready * self.costs.device
        for arrival in sorted(waiting):
            end = max(end, arrival) + self.costs.device
        self.device_busy += (ready + len(waiting)) * self.costs.device
        self.host += by_host
        self.now = max(end, self.now + by_host * self.costs.host)

    def timing(self, step_seconds: Seconds) -> Timing:
        """What was found."""
        return Timing(
            *(step_seconds, self.lookups, self.hits, self.late, self.host, self.moved),
            device_busy=self.device_busy,
            host_busy=self.host * self.costs.host,
            link_busy=self.moved * self.costs.link,
        )
