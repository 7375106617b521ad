"""Policies on one link: what a token waits for, and whether prefetches pay."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from miractl.native.bets import Bets, BetsState, Course, Floats, Link, run_timeline
from miractl.native.predictor import Predictor, PredictorState
from miractl.native.replay import Outcome, Routing
from miractl.plan.chunks import LINK_CHUNK, chunks_of
from miractl.policy.registry import DEFAULT, POLICIES
from miractl.simulate.study import outcome_of

PAYS = 0.01  # share of a token's time that has to be saved before a prefetch is said to pay


@dataclass(frozen=True, slots=True)
class Setting:
    """The machine that is played: seconds of an expert's transfer and of a layer's compute.

    `staged` experts at most are brought ahead of need, up to `horizon` layers. `assumptions` say
    where the figures are from.
    """

    expert_bytes: int
    transfer: float
    compute: float
    staged: int
    horizon: int
    assumptions: tuple[str, ...] = ()

    @property
    def reach(self) -> int:
        """Layers ahead that are worth a guess: transfers that end in time need no more."""
        return min(self.horizon, 1 + int(self.transfer / self.compute))


@dataclass(frozen=True, slots=True)
class LinkScore:
    """What one policy made of one recording on a link; times are of a token, in seconds.

    A hit has its expert in place; a late one is a miss that was under way, or partly there.
    """

    policy: str
    slots: int
    hit_rate: float
    late_rate: float
    wasted_bytes: float
    stall: float
    seconds: float
    stall_without: float  # prefetches, as is the next
    seconds_without: float

    @property
    def saved(self) -> float:
        """Share of the time without prefetches that they save."""
        return 1 - self.seconds / self.seconds_without


def foresee(routing: Routing, reach: int) -> Floats:
    """What the learned predictor says, [reach, tokens, layers, experts], cold at the beginning."""
    sizes = (routing.layers, routing.experts, routing.top)
    each = [
        Predictor(PredictorState(*sizes, ahead=ahead)).foresee(routing)
        for ahead in range(1, reach + 1)
    ]
    result: Floats = np.stack(each)
    return result


def compare_on_link(
    routing: Routing,
    slots: int,
    names: Sequence[str],
    setting: Setting,
    guesses: Floats,
    token_seconds: float,
) -> list[LinkScore]:
    """Play the named policies, in the order of POLICIES; `guesses` as `foresee` makes them."""
    return [
        _score(routing, slots, name, setting, guesses, token_seconds)
        for name in POLICIES
        if name in names
    ]


def _score(
    routing: Routing,
    slots: int,
    name: str,
    setting: Setting,
    guesses: Floats,
    token_seconds: float,
) -> LinkScore:
    outcome = outcome_of(POLICIES[name], routing, slots, token_seconds, residents=True)
    alone = _play(routing, outcome, guesses, setting, 0)
    own = _play(routing, outcome, guesses, setting, setting.reach)
    asked, tokens = routing.ids.size, routing.tokens
    return LinkScore(
        *(name, slots),
        hit_rate=(int(outcome.hits.sum()) + own.used) / asked,
        late_rate=own.late / asked,
        wasted_bytes=own.wasted_seconds / setting.transfer * setting.expert_bytes / tokens,
        stall=own.stall / tokens,
        seconds=own.seconds / tokens,
        stall_without=alone.stall / tokens,
        seconds_without=alone.seconds / tokens,
    )


def _play(
    routing: Routing, outcome: Outcome, guesses: Floats, setting: Setting, reach: int
) -> Course:
    reach = reach if setting.staged else 0
    sizes = (routing.layers, routing.experts, max(1, setting.staged))
    link = Link(setting.transfer, setting.compute, horizon=reach)
    chunks = chunks_of(setting.expert_bytes, LINK_CHUNK)
    state = BetsState(*sizes, classes=max(1, reach), chunks=chunks)
    return run_timeline(routing, outcome, guesses, link, Bets(state))


def link_verdict(scores: Sequence[LinkScore]) -> str:
    """One sentence: whether prefetches pay on this link, by the default policy if it is there."""
    score = next((s for s in scores if s.policy == DEFAULT), scores[0])
    change = f"{1e3 * score.seconds:.3g} ms a token instead of {1e3 * score.seconds_without:.3g}"
    if score.saved >= PAYS:
        return f"Prefetches pay: {change} with {score.policy}, {100 * score.saved:.0f} % less."
    if score.stall_without < PAYS * score.seconds_without:
        return "Prefetches have nothing to gain: tokens hardly wait for experts."
    why = "the link has hardly a moment to spare" if score.saved >= 0 else "guesses cost a little"
    return f"Prefetches do not pay: {change} with {score.policy}; {why}."
