"""The search finds what is fastest, by few runs, and does not sell noise."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from miractl.plan.tuning import (
    GROWTH,
    LAST_REPEATS,
    LEAST_SECONDS,
    LEAST_TRIED,
    MOST_SECONDS,
    Candidate,
    Pace,
    Shape,
    affordable,
    best_of,
    candidates,
    conclude,
    run_count,
    search,
    trials,
)

TODAY = Candidate(sets=1, staged=4, threads=1)
SHAPE = Shape(layers=8, experts=512, top_k=8, slots=200)


def test_candidates_start_with_todays_then_half_as_many_sets_as_layers():
    tried = candidates(SHAPE, (1, 2), TODAY)
    assert tried[:3] == [TODAY, Candidate(4, 4, 1), Candidate(1, 4, 2)]
    assert len(tried) == len(set(tried)) == 4 * 4 * 2
    changes = [one.changes(TODAY) for one in tried[2:]]
    assert changes == sorted(changes)


def test_sets_that_cannot_hold_a_token_are_left_out():
    small = replace(SHAPE, slots=40)
    tried = candidates(small, (1,), TODAY)
    assert {c.sets for c in tried} == {1, 2, 4}
    assert all(c.ways(small) >= 8 for c in tried)


def test_where_nothing_can_be_prefetched_nothing_is_staged():
    tried = candidates(replace(SHAPE, bets=False), (1,), replace(TODAY, staged=0))
    assert {c.staged for c in tried} == {0}


def test_where_all_experts_fit_only_threads_are_tried():
    today = Candidate(8, 0, 2)
    assert candidates(replace(SHAPE, slots=512), (1, 2, 4), today) == [
        *(today, Candidate(8, 0, 1), Candidate(8, 0, 4)),
    ]


def test_the_fastest_wins_and_the_runs_are_few():
    tried = candidates(SHAPE, (1, 2), TODAY)
    best = Candidate(8, 2, 2)
    asked: Counter[Candidate] = Counter()

    def measure(candidate: Candidate, passages: int) -> float:
        asked[candidate] += passages
        return 13.0 - candidate.changes(best)

    runs = list(search(tried, TODAY, measure, passages=3))
    outcome = conclude(runs, TODAY)
    assert outcome.best.candidate == best
    assert best_of(runs) == outcome.best
    assert outcome.gain == pytest.approx(13 / 10)
    assert outcome.is_worth_it
    assert len(outcome.best.samples) == LAST_REPEATS
    assert asked[best] == max(asked.values())
    first = [run for run in runs if run.round == 1]
    assert {run.passages for run in first} == {3}
    assert [run.candidate for run in first] == tried
    assert len(runs) == run_count(len(tried))
    assert runs[-1].passages == 3 * GROWTH ** (runs[-1].round - 1)


def test_noise_is_not_a_gain():
    dice = random.Random(5)
    tried = candidates(SHAPE, (1,), TODAY)
    sold = 0
    for _ in range(50):
        runs = list(search(tried, TODAY, lambda *_: dice.uniform(9, 11), 1))
        sold += conclude(runs, TODAY).is_worth_it
    assert sold <= 2


def test_a_gain_within_the_spread_is_none():
    pairs = iter([10.0, 11.0, 10.0, 12.0, 10.0, 9.5, 11.0, 12.0, 9.0, 11.0])
    other = replace(TODAY, sets=4)
    outcome = conclude(list(search([TODAY, other], TODAY, lambda *_: next(pairs), 1)), TODAY)
    assert outcome.best.candidate == other
    assert outcome.gain == pytest.approx(1.1)
    assert outcome.noise == pytest.approx(1 / 10 + 1.25 / 11)
    assert not outcome.is_worth_it


def test_runs_of_the_last_round_alternate():
    order = []

    def measure(candidate: Candidate, passages: int) -> float:
        order.append(candidate)
        return float(candidate.threads)

    list(search([Candidate(1, 0, 1), Candidate(1, 0, 2)], TODAY, measure, 1))
    assert order == [Candidate(1, 0, 1), Candidate(1, 0, 2), TODAY] * LAST_REPEATS


def test_the_best_so_far_is_of_the_last_round_that_is_complete():
    tried = candidates(SHAPE, (1,), TODAY)
    rates = iter(range(1, 100))
    runs = list(search(tried, TODAY, lambda *_: float(next(rates)), 1))
    assert best_of([]) is None
    begun = best_of(runs[:3])
    assert begun is not None
    assert begun.candidate == tried[2]
    assert begun.spread is None  # of one run nothing is known
    second = best_of(runs[: len(tried) + 1])
    assert second is not None
    assert (second.round, second.candidate) == (1, tried[-1])
    assert [t.round for t in trials(runs[: len(tried) + 1])] == [1] * len(tried) + [2]


@pytest.mark.parametrize("seconds", [0, 60, 600, 6000])
@pytest.mark.parametrize("pace", [Pace(1, 0.1), Pace(5, 3), Pace(60, 20)])
def test_what_is_tried_fits_the_time(seconds: float, pace: Pace):
    every = candidates(SHAPE, (1, 2), TODAY)
    tried, passages = affordable(every, pace, seconds)
    assert tried == every[: len(tried)]
    assert len(tried) >= LEAST_TRIED
    assert passages * pace.passage >= LEAST_SECONDS
    assert passages == 1 or passages * pace.passage <= MOST_SECONDS
    asked: list[int] = []

    def measure(_: Candidate, length: int) -> float:
        asked.append(length)
        return 1.0

    list(search(tried, TODAY, measure, passages))
    took = len(asked) * pace.load + sum(asked) * pace.passage
    assert took <= seconds or len(tried) == LEAST_TRIED
    assert len(tried) == len(every) or seconds < 6000 or pace.load > 5
