"""Search for the settings that are fastest here: many candidates, few measurements.

Successive halving (Jamieson and Talwalkar, 2016): all candidates get a short run, the better half
gets one twice as long, until two are left. Runs of one round alternate, so that a slow minute of
the machine falls on all of them. The start is the published procedure for set-associative caches:
half as many sets as MoE layers. The winner is only worth a change if it beats what runs today by
more than the spread of the measurements.

A run goes through passages, a prompt and the tokens after it, and gives tokens a second.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import product

from miractl.plan.slots import reserve

GROWTH = 2  # passages of a run from round to round
LAST = 2  # candidates that meet in the last round, beside today's settings
LAST_REPEATS = 5
LEAST_TRIED = 4
STAGED = (0, 2, 4, 8)
LEAST_SECONDS, MOST_SECONDS = 1.0, 4.0  # of a run of the first round, beside loading


@dataclass(frozen=True, slots=True)
class Shape:
    """What the candidates divide. `bets`: whether anything can be prefetched at all."""

    layers: int
    experts: int  # of all layers
    top_k: int
    slots: int
    bets: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether every expert has a slot: then only threads make a difference."""
        return self.slots == self.experts


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run. `ways` follow from the memory; 0 staged experts is no prefetch."""

    sets: int
    staged: int
    threads: int

    def ways(self, shape: Shape) -> int:
        """M of N x M = residents; what is left over gives some sets one more."""
        return (shape.slots - reserve(shape.slots, shape.top_k)) // self.sets

    def changes(self, other: "Candidate") -> int:
        """In how many settings two differ."""
        return sum(one != two for one, two in zip(astuple(self), astuple(other), strict=True))


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run: the `place`-th of the `count` of its round, tokens a second."""

    candidate: Candidate
    round: int
    place: int
    count: int
    passages: int
    rate: float


@dataclass(frozen=True, slots=True)
class Trial:
    """What one candidate reached in one round, tokens a second of each run."""

    candidate: Candidate
    round: int
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Tokens a second."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float | None:
        """Half the range of the runs over their median; None for one run, which tells nothing."""
        if len(self.samples) < 2:
            return None
        return (max(self.samples) - min(self.samples)) / 2 / self.median


@dataclass(frozen=True, slots=True)
class Outcome:
    """The best candidate, and today's in the same last round."""

    best: Trial
    today: Trial

    @property
    def gain(self) -> float:
        """Tokens a second of the best over today's."""
        return self.best.median / self.today.median

    @property
    def noise(self) -> float:
        """The spread of both."""
        return (self.best.spread or 0.0) + (self.today.spread or 0.0)

    @property
    def is_worth_it(self) -> bool:
        """Whether the gain is larger than the spread of both."""
        return self.gain > 1 + self.noise


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that a run takes, to load and for each passage."""

    load: float
    passage: float


# Tokens a second of one candidate over so many passages.
Measure = Callable[[Candidate, int], float]


def candidates(shape: Shape, threads: Sequence[int], today: Candidate) -> list[Candidate]:
    """What to try: today's settings, the published start, and then what differs least from today.

    Sets from one for all layers to one a layer, as long as a set holds the experts of a token;
    staging from none; as many threads as `threads` names.
    """
    if shape.is_whole:
        return list(dict.fromkeys([today, *(replace(today, threads=n) for n in threads)]))
    start = replace(today, sets=max(1, shape.layers // 2))
    counts = {start.sets, max(1, shape.layers // 4), shape.layers, 1}
    staged = STAGED if shape.bets else (0,)
    grid = [Candidate(*values) for values in product(sorted(counts), staged, threads)]
    # Of those that differ in one setting, threads come first: wrong ones cost most.
    grid.sort(key=lambda one: (one != start, one.changes(today), one.threads == today.threads))
    fitting = [
        one for one in grid if one.staged <= shape.slots // 4 and one.ways(shape) >= shape.top_k
    ]
    return list(dict.fromkeys([today, *fitting]))


def affordable(
    tried: Sequence[Candidate], pace: Pace, seconds: float
) -> tuple[list[Candidate], int]:
    """As many candidates as can be compared in the time, first ones first, and passages to begin.

    However short the time, a few are.
    """
    least = max(1, math.ceil(LEAST_SECONDS / pace.passage))
    most = max(least, int(MOST_SECONDS / pace.passage))
    for count in range(len(tried), LEAST_TRIED, -1):
        plan = list(_rounds(count))
        runs = run_count(count)
        units = sum(left * repeats * growth for left, repeats, growth in plan)
        passages = int((seconds - runs * pace.load) / (units * pace.passage))
        if passages >= least:
            return list(tried[:count]), min(most, passages)
    return list(tried[:LEAST_TRIED]), least


def run_count(count: int) -> int:
    """Runs of a search among so many candidates, at most."""
    return sum(left * repeats for left, repeats, _ in _rounds(count))


def search(
    tried: Sequence[Candidate], today: Candidate, measure: Measure, passages: int
) -> Iterator[Run]:
    """Measure in rounds, telling each run when it is over."""
    left, rounds = list(tried), list(_rounds(len(tried)))
    for number, (_, repeats, growth) in enumerate(rounds, start=1):
        if number == len(rounds):
            left = list(dict.fromkeys([*left[:LAST], today]))
        count, found = len(left) * repeats, []
        for place in range(count):
            candidate = left[place % len(left)]
            rate = measure(candidate, passages * growth)
            run = Run(candidate, number, place + 1, count, passages * growth, rate)
            found.append(run)
            yield run
        found.sort(key=lambda run: -run.rate)
        left = [run.candidate for run in found[: max(LAST, len(left) // 2)]]


def trials(runs: Sequence[Run]) -> list[Trial]:
    """The runs of a round and candidate together, in the order in which they began."""
    samples: dict[tuple[int, Candidate], list[float]] = {}
    for run in runs:
        samples.setdefault((run.round, run.candidate), []).append(run.rate)
    return [Trial(one, number, tuple(rates)) for (number, one), rates in samples.items()]


def best_of(runs: Sequence[Run]) -> Trial | None:
    """The fastest of the last round that is complete, of the first if none is; None of none."""
    if not runs:
        return None
    complete = [run.round for run in runs if run.place == run.count]
    last = max(complete, default=1)
    return max((t for t in trials(runs) if t.round == last), key=lambda trial: trial.median)


def conclude(runs: Sequence[Run], today: Candidate) -> Outcome:
    """The outcome of a search that has ended."""
    last = [trial for trial in trials(runs) if trial.round == runs[-1].round]
    best = max(last, key=lambda trial: trial.median)
    return Outcome(best, next(trial for trial in last if trial.candidate == today))


def _rounds(count: int) -> Iterator[tuple[int, int, int]]:
    """Of a search among so many: candidates, runs of each, and how much longer than the first."""
    growth = 1
    while count > LAST:
        yield count, 1, growth
        count, growth = max(LAST, count // 2), growth * GROWTH
    yield LAST + 1, LAST_REPEATS, growth
