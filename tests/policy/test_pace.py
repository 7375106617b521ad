"""The pace of layers: waiting is left out, prompts are apart, steps are not paired."""

import pytest

from miractl.simulate.betting import RATE, Pace


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
