"""A recording driven through the runtime's own objects: the slot table and the policies.

Steps are taken as they were recorded: the tokens of a prompt together, requests that were answered
at the same time beside each other. Nothing is prefetched. Other than the replays in C this counts
an expert once a step, however many tokens ask for it, as the runtime does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from miractl.errors import UsageError
from miractl.native.replay import Routing
from miractl.policy.brain import Brain
from miractl.policy.heat import HeatTable
from miractl.policy.registry import make_policy, ways_for
from miractl.policy.routing import Routed, Segment
from miractl.policy.slots import SlotTable, make_slots
from miractl.simulate.study import routing_of
from miractl.telemetry.trace import Trace

RESERVE = 5  # slots, as with the default of four staged experts
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Slots:
    """How many slots there are, as `miractl.plan.slots` divides them."""

    slots: int
    ways: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drive:
    """What came of it, [layers] each: experts asked for, those there, those that stayed."""

    lookups: Counts
    hits: Counts
    entered: Counts
    steps: int
    tokens: int

    @property
    def misses(self) -> int:
        """Experts brought in."""
        return int(self.lookups.sum() - self.hits.sum())

    @property
    def hit_rate(self) -> float:
        """Share of the lookups that were there."""
        return float(self.hits.sum() / self.lookups.sum())


def equal_slots(count: int, layers: int) -> Slots:
    """`count` residents a layer, and a reserve for those that pass through."""
    return Slots(count * layers + RESERVE, (count,) * layers)


def recorded_slots(trace: Trace) -> Slots | None:
    """Those of the server that recorded, if the trace says so."""
    return None if trace.slots is None else Slots(*trace.slots)


class Clock:
    """Time of the recording, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now


def steps_of(trace: Trace, routing: Routing) -> Iterator[tuple[list[float] | None, list[Routed]]]:
    """Each step's layers, and when each was known if the trace says so.

    Raises UsageError for a trace that does not say which tokens were computed together.
    """
    if trace.steps is None:
        raise UsageError(
            f"trace {trace.name} does not say which tokens were computed together",
            hint="miractl serve --record-trace FILE records it",
        )
    lengths = trace.lengths or (len(trace.ids),)
    starts = np.cumsum((0, *lengths))[:-1]
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    first = trace.first_positions or (0,) * len(lengths)
    position = np.arange(len(trace.ids)) - (starts - np.array(first))[sequence]
    places = () if trace.rows is None else (trace.rows,)
    order = np.lexsort((*places, trace.steps))
    edges = np.flatnonzero(np.diff(trace.steps[order])) + 1
    ids, scores = trace.ids, routing.probabilities
    for number, tokens in enumerate(np.split(order, edges)):
        segments = tuple(_segments(sequence[tokens], position[tokens]))
        step = int(trace.steps[tokens[0]])
        seconds = None if trace.gate_seconds is None else trace.gate_seconds[step].tolist()
        yield (
            seconds,
            [
                Routed(layer, ids[tokens, layer], scores[tokens, layer], segments, number)
                for layer in range(routing.layers)
            ],
        )


def _segments(sequence: Counts, position: Counts) -> Iterator[Segment]:
    edges = np.flatnonzero(np.diff(sequence) | (np.diff(position) != 1)) + 1
    bounds = [0, *edges.tolist(), len(sequence)]
    for start, stop in pairwise(bounds):
        yield Segment(int(sequence[start]), start, stop, int(position[start]))


def drive(trace: Trace, policy: str, given: Slots, token_seconds: float, **heat: float) -> Drive:
    """Replay by one policy of `miractl.policy.registry.ONLINE`, from a cold cache.

    The heat's clock runs with the recording, or `token_seconds` a step where that has no times.
    """
    routing, clock = routing_of(trace), Clock()
    scores = HeatTable(routing.layers, routing.experts, routing.top, clock=clock, **heat)
    slots = sum(given.ways) / routing.layers
    brain = Brain(make_policy(policy, routing.top, slots, scores), scores)
    table = make_slots(given.slots, ways_for(policy, given.ways), 0, brain)
    passed = np.zeros(routing.layers, np.int64)
    steps = 0
    try:
        for seconds, layers in steps_of(trace, routing):
            known = [steps * token_seconds] * len(layers) if seconds is None else seconds
            steps += 1
            for routed, clock.now in zip(layers, known, strict=True):
                table.record(routed)
                before = table.bypassed
                _serve(table, routed)
                passed[routed.layer] += table.bypassed - before
    finally:
        brain.close()
    hits, misses = table.hits.sum(axis=1), table.misses.sum(axis=1)
    return Drive(hits + misses, hits, misses - passed, steps, routing.tokens)


def _serve(table: SlotTable, routed: Routed) -> None:
    """Look the experts of a layer up and bring in what is absent, in waves: see ExpertCache."""
    table.ask(routed)
    table.end_transit()
    while table.waits:
        table.ask_again()
        table.end_transit()
