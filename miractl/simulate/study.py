"""Policies side by side on one recording: hit rates, and the share of LRU's loss that each avoids.

The gap of a policy runs from LRU, one cache a layer, to the optimum with the policy's own freedoms:
whether a miss has to enter the cache, and whether layers share their slots.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from miractl.errors import UsageError
from miractl.native.learner import Learner, LearnerState, discount_for, window_for
from miractl.native.replay import Cache, Kind, Outcome, Routing, Rule, replay
from miractl.policy.registry import POLICIES, Policy
from miractl.telemetry.trace import Trace
from miractl.units import counted

SMALLEST_GAP = 0.001  # below this there is nothing to share out
Rates = npt.NDArray[np.float64]


BASE, BEST, CLASSIC = "lru", "optimum", "belady"


@dataclass(frozen=True, slots=True)
class Score:
    """What one policy made of one recording with `slots` experts a layer on average.

    `gap` is the share of the way from LRU to the policy's own optimum, `layer_gap` the same to
    Belady with one cache a layer; None where there is no way to go. `layer_rates` are hit rates of
    the layers, `entered` experts a token that came to stay.
    """

    policy: str
    slots: int
    hit_rate: float
    gap: float | None
    layer_gap: float | None
    misses_per_token: float
    entered_per_token: float
    layer_rates: tuple[float, ...]


def routing_of(trace: Trace) -> Routing:
    """The trace as the replays want it. Raises UsageError if a token names an expert twice."""
    starts = np.zeros(len(trace.ids), bool)
    starts[0] = True
    if trace.lengths is not None:
        begins = np.cumsum((0, *trace.lengths))[:-1]
        starts[begins[begins < len(starts)]] = True
    experts = trace.experts or int(trace.ids.max()) + 1
    try:
        return Routing(trace.ids, experts, trace.probabilities, starts)
    except ValueError as error:
        raise UsageError(f"trace {trace.name}: {error}") from None


def slots_for(share: float, routing: Routing) -> int:
    """Experts a layer for a share of all of them, at least one."""
    return max(1, round(share * routing.experts))


def outcome_of(
    policy: Policy, routing: Routing, slots: int, token_seconds: float, residents: bool = False
) -> Outcome:
    """The replay of one policy from a cold cache; with `residents`, who was there and when."""
    learner = None
    if policy.kind is Kind.LEARNED:
        discount, window = discount_for(slots, routing.top), window_for(slots, routing.top)
        sizes = (routing.layers, routing.experts, routing.top)
        learner = Learner(LearnerState(*sizes, discount, window=window))
    ways = (slots * routing.layers,) if policy.pooled else (slots,) * routing.layers
    rule = Rule(policy.kind, token_seconds=token_seconds, learner=learner)
    cache = Cache(ways, policy.pooled, policy.admission, policy.shifts)
    return replay(routing, cache, rule, residents)


def hits(policy: Policy, routing: Routing, slots: int, token_seconds: float) -> tuple[Rates, float]:
    """Hit rates of the layers, and how many experts a token came to stay."""
    outcome = outcome_of(policy, routing, slots, token_seconds)
    rates: Rates = outcome.hits.mean(axis=(0, 2))
    return rates, float(outcome.entered.sum()) / routing.tokens


def compare(
    routing: Routing, slots: int, names: list[str], token_seconds: float = 0.05
) -> list[Score]:
    """Replay the named policies, and those that they are measured by, each once."""
    measures = {BASE, CLASSIC, *(POLICIES[name].optimum for name in names)}
    found = {
        name: hits(POLICIES[name], routing, slots, token_seconds)
        for name in POLICIES
        if name in measures or name in names
    }
    rates = {name: float(layers.mean()) for name, (layers, _) in found.items()}

    def share(name: str, to: str) -> float | None:
        way = rates[to] - rates[BASE]
        return (rates[name] - rates[BASE]) / way if way >= SMALLEST_GAP else None

    asked = routing.layers * routing.top
    return [
        Score(
            *(name, slots, rates[name], share(name, POLICIES[name].optimum), share(name, CLASSIC)),
            misses_per_token=(1 - rates[name]) * asked,
            entered_per_token=found[name][1],
            layer_rates=tuple(map(float, found[name][0])),
        )
        for name in POLICIES
        if name in names
    ]


def verdict(scores: list[Score]) -> str:
    """One sentence: whether misses are the working set's or the policy's.

    `scores` hold LRU and the optimum of one recording and number of slots.
    """
    by_name = {score.policy: score for score in scores}
    lru, best = by_name[BASE], by_name[BEST]
    missed, due = 1 - lru.hit_rate, 1 - best.hit_rate
    if missed < 0.01:
        return "Nearly all that is used fits: LRU misses less than 1 %, no policy can add much."
    share, slots = due / missed, counted(lru.slots, "slot")
    text = (
        f"of LRU's {100 * missed:.1f} misses in 100, {100 * due:.1f} are there for a cache that"
        " knows the future"
    )
    if share >= 0.5:
        return f"The working set is too large for {slots} a layer: {text}; add slots."
    return f"The policy is to blame more than the {slots} a layer: {text}."
