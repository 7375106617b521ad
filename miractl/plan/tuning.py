"""Search for the settings that are fastest here: many candidates, few measurements.

Successive halving (Jamieson and Talwalkar, 2016): all candidates get a short run, the better half
gets one twice as long, until two are left. Runs of one round alternate, so that a slow minute of
the machine falls on all of them. The start is the published procedure for set-associative caches:
half as many sets as MoE layers. The winner is only worth a change if it beats what runs today by
more than the spread of the measurements.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

FIRST_TOKENS = 16
GROWTH = 2  # tokens of a run from round to round
LAST = 2  # candidates that meet in the last round, beside today's settings
LAST_REPEATS = 5
STAGED = (0, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run. `ways` follow from the memory; 0 staged experts is no prefetch."""

    sets: int
    staged: int
    threads: int

    def ways(self, slots: int) -> int:
        """M of N x M = slots."""
        return (slots - 1 - self.staged) // self.sets


@dataclass(frozen=True, slots=True)
class Trial:
    """What one candidate reached in one round, tokens a second of each run."""

    candidate: Candidate
    round: int
    tokens: int
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """Tokens a second."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Half the range of the runs over their median."""
        return (max(self.samples) - min(self.samples)) / 2 / self.median


@dataclass(frozen=True, slots=True)
class Outcome:
    """All trials in order, the best candidate, and today's in the same last round."""

    trials: tuple[Trial, ...]
    best: Trial
    today: Trial

    @property
    def gain(self) -> float:
        """Tokens a second of the best over today's."""
        return self.best.median / self.today.median

    @property
    def is_worth_it(self) -> bool:
        """Whether the gain is larger than the spread of both."""
        return self.gain > 1 + self.best.spread + self.today.spread


# Tokens a second of one candidate over so many tokens.
Measure = Callable[[Candidate, int], float]


def candidates(
    layers: int, slots: int, top_k: int, threads: Sequence[int], start: Candidate
) -> list[Candidate]:
    """What to try, the start and the published starting point first.

    Sets from one for all layers to one a layer, as long as a set holds the experts of a token;
    staging from none; as many threads as `threads` names.
    """
    counts = sorted({max(1, layers // 2), max(1, layers // 4), layers, 1})
    counts.sort(key=lambda sets: sets != max(1, layers // 2))
    grid = (Candidate(*values) for values in product(counts, STAGED, threads))
    fitting = [c for c in grid if c.staged <= slots // 4 and c.ways(slots) >= top_k]
    return list(dict.fromkeys([start, *fitting]))


def search(tried: Sequence[Candidate], today: Candidate, measure: Measure) -> Iterator[Trial]:
    """Measure in rounds, telling each trial when its round is over."""
    left, tokens, number = list(tried), FIRST_TOKENS, 1
    while len(left) > LAST:
        trials = _round(left, number, tokens, 1, measure)
        yield from trials
        trials.sort(key=lambda trial: -trial.median)
        left = [trial.candidate for trial in trials[: max(LAST, len(left) // 2)]]
        tokens, number = tokens * GROWTH, number + 1
    last = list(dict.fromkeys([*left, today]))
    yield from _round(last, number, tokens, LAST_REPEATS, measure)


def conclude(trials: Sequence[Trial], today: Candidate) -> Outcome:
    """The outcome of a search that has ended."""
    last = [trial for trial in trials if trial.round == trials[-1].round]
    best = max(last, key=lambda trial: trial.median)
    return Outcome(tuple(trials), best, next(t for t in last if t.candidate == today))


def _round(
    left: Sequence[Candidate], number: int, tokens: int, repeats: int, measure: Measure
) -> list[Trial]:
    samples: dict[Candidate, list[float]] = {candidate: [] for candidate in left}
    for _ in range(repeats):
        for candidate in left:
            samples[candidate].append(measure(candidate, tokens))
    return [Trial(c, number, tokens, tuple(found)) for c, found in samples.items()]
