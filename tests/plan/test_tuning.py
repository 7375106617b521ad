"""The search finds what is fastest, by few runs, and does not sell noise."""

import random
from collections import Counter

import pytest

from miractl.plan.tuning import FIRST_TOKENS, LAST_REPEATS, Candidate, candidates, conclude, search

TODAY = Candidate(sets=1, staged=4, threads=1)


def test_candidates_start_with_todays_then_half_as_many_sets_as_layers():
    tried = candidates(layers=8, slots=200, top_k=8, threads=(1, 2), start=TODAY)
    assert tried[0] == TODAY
    assert tried[1] == Candidate(4, 0, 1)
    assert len(tried) == len(set(tried)) == 4 * 4 * 2


def test_sets_that_cannot_hold_a_token_are_left_out():
    tried = candidates(layers=8, slots=40, top_k=8, threads=(1,), start=TODAY)
    assert {c.sets for c in tried} == {1, 2, 4}
    assert all(c.ways(40) >= 8 for c in tried)


def test_the_fastest_wins_and_the_runs_are_few():
    tried = candidates(layers=8, slots=200, top_k=8, threads=(1, 2), start=TODAY)
    best = Candidate(8, 2, 2)
    asked: Counter[Candidate] = Counter()

    def measure(candidate: Candidate, tokens: int) -> float:
        asked[candidate] += tokens
        near = sum(getattr(candidate, n) == getattr(best, n) for n in ("sets", "staged", "threads"))
        return 10.0 + near

    outcome = conclude(list(search(tried, TODAY, measure)), TODAY)
    assert outcome.best.candidate == best
    assert outcome.gain == pytest.approx(13 / 10)
    assert outcome.is_worth_it
    assert len(outcome.best.samples) == LAST_REPEATS
    assert asked[best] == max(asked.values())
    first = [trial for trial in outcome.trials if trial.round == 1]
    assert {trial.tokens for trial in first} == {FIRST_TOKENS}
    assert len(first) == len(tried)


def test_noise_is_not_a_gain():
    dice = random.Random(5)
    tried = candidates(layers=8, slots=200, top_k=8, threads=(1,), start=TODAY)
    trials = list(search(tried, TODAY, lambda candidate, tokens: dice.uniform(9, 11)))
    assert not conclude(trials, TODAY).is_worth_it


def test_runs_of_the_last_round_alternate():
    order = []

    def measure(candidate: Candidate, tokens: int) -> float:
        order.append(candidate)
        return float(candidate.threads)

    list(search([Candidate(1, 0, 1), Candidate(1, 0, 2)], TODAY, measure))
    assert order == [Candidate(1, 0, 1), Candidate(1, 0, 2), TODAY] * LAST_REPEATS
