"""The pace of layers: waiting is left out, prompts are apart, steps are not paired."""

import pytest

from miractl.simulate.betting import RATE, Overlap, Pace


def test_a_layer_takes_what_is_left_of_waiting() -> None:
    pace = Pace(3)
    assert pace.until(1, prompt=False) is None
    pace.mark(0, now=1.0, waited=0.0, prompt=False)
    pace.mark(1, now=1.5, waited=0.3, prompt=False)
    assert pace.until(1, prompt=False) == pytest.approx(0.2)
    assert pace.until(1, prompt=True) is None
    pace.mark(2, now=1.6, waited=0.4, prompt=False)
    assert pace.until(2, prompt=False) == pytest.approx(0)


def test_the_first_layer_of_a_step_does_not_follow_the_last() -> None:
    pace = Pace(2)
    for start in (0.0, 10.0):
        pace.mark(0, start, 0.0, prompt=False)
        pace.mark(1, start + 1, 0.0, prompt=False)
    assert pace.until(0, prompt=False) is None
    assert pace.until(1, prompt=False) == 1.0
    pace.mark(1, 15.0, 0.0, prompt=False)  # layer 0 of that step was lost
    assert pace.until(1, prompt=False) == 1.0


def test_the_pace_is_an_average() -> None:
    pace = Pace(2)
    for seconds in (1.0, 2.0):
        pace.mark(0, 0.0, 0.0, prompt=True)
        pace.mark(1, seconds, 0.0, prompt=True)
    assert pace.until(1, prompt=True) == pytest.approx(1 + RATE)


def test_experts_are_timed_apart_for_prompts() -> None:
    overlap = Overlap()
    assert overlap.each(prompt=False) == 0
    overlap.computed(0.5, 2, prompt=False)
    overlap.computed(0.0, 0, prompt=True)  # none was there
    assert (overlap.each(prompt=False), overlap.each(prompt=True)) == (0.25, 0)
    overlap.computed(1.25, 1, prompt=False)
    assert overlap.each(prompt=False) == pytest.approx(0.25 + RATE)


def test_stall_is_an_average() -> None:
    overlap = Overlap()
    for _ in range(400):
        stall = overlap.waits(2.0, prompt=True)
    assert stall == pytest.approx(2.0)
    assert overlap.waits(0.0, prompt=False) == 0
