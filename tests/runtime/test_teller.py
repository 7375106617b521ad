"""What the library does for one new token in one call is what observing and guessing do."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from miractl.native.residency import Role
from miractl.policy.brain import Brain
from miractl.policy.eviction import LeastRecentlyUsed
from miractl.policy.foresight import Foresight
from miractl.policy.heat import HeatTable
from miractl.policy.markov import MarkovTable
from miractl.policy.prediction import Predictor, Probabilities, TablePredictor, Telling
from miractl.policy.resampling import Resampled
from miractl.policy.routing import Routed, Segment
from miractl.policy.slots import make_slots
from miractl.runtime.cache import ExpertCache
from miractl.runtime.emulated import EmulatedLink
from miractl.runtime.prefetch import Prefetcher

pytestmark = pytest.mark.usefixtures("kernels")
LAYERS, EXPERTS, TOP, TOKENS = 5, 16, 2, 120
ALONE, BESIDE = 50, 60  # steps with prompts
MAKERS: dict[str, Callable[[], TablePredictor]] = {
    "markov": lambda: MarkovTable(LAYERS, EXPERTS, TOP),
    "learned": lambda: Foresight(LAYERS, EXPERTS, TOP, horizon=3),
}


class Observing:
    """The same predictor, which nobody can leave to the library."""

    def __init__(self, inner: Predictor) -> None:
        self._inner, self.mode = inner, inner.mode
        self.observe, self.guess, self.fade = inner.observe, inner.guess, inner.fade


def steps() -> Iterator[Routed]:
    """New tokens of a sequence; the prompts of two others, one beside it; and new tokens of two."""
    rng = np.random.default_rng(5)
    for step in range(TOKENS):
        tokens = 4 if step in (BESIDE, ALONE) else 2 if step % 40 > 36 else 1
        segments = (Segment(1, 0, 1, step), Segment(2, 1, tokens, max(0, step - 67)))
        if step == ALONE:
            segments = (Segment(3, 0, 4, 0),)
        ids = np.zeros((tokens, TOP), np.int64)
        for layer in range(LAYERS):
            first = rng.integers(0, EXPERTS // 2, tokens) if layer == 0 else ids[:, 0] * 3 + 1
            ids = np.stack([first % EXPERTS, (first + 5) % EXPERTS], axis=1)
            scores = np.full(ids.shape, 0.5, np.float32)
            yield Routed(layer, ids, scores, segments[:1] if tokens == 1 else segments, step)


def run(
    predictor: Predictor, transfer: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Any], ExpertCache]:
    """What was bet, by which guesses; and the cache."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += max(seconds, 1e-6)

    heat = HeatTable(LAYERS, EXPERTS, TOP, clock=lambda: now[0])
    table = make_slots(30, (5,) * LAYERS, 4, Brain(LeastRecentlyUsed(LAYERS, EXPERTS), heat))
    link = EmulatedLink(1000 / transfer, 1000, lambda: now[0], sleep)
    cache = ExpertCache(table, link, lambda: now[0])
    Prefetcher(cache, predictor, confidence=1.0, horizon=3, clock=lambda: now[0])
    bets: list[Any] = []
    issue = cache.issue

    def noted(layer: int, pairs: list[list[int]], guess: Probabilities) -> None:
        bets.append((layer, pairs, guess.tobytes()))
        issue(layer, pairs, guess)

    monkeypatch.setattr(cache, "issue", noted)
    for step in steps():
        cache.route(step, None)
        for _ in cache.serve(step):
            now[0] += 0.2
        now[0] += 0.8
    return bets, cache


@pytest.mark.parametrize("name", list(MAKERS))
@pytest.mark.parametrize("transfer", [0.5, 1.5])
def test_one_call_decides_as_observing_and_guessing_do(
    name: str, transfer: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, asked = Resampled(MAKERS[name](), 70), Resampled(MAKERS[name](), 70)
    assert isinstance(told, Telling)
    assert not isinstance(Observing(asked), Telling)
    bets, cache = run(told, transfer, monkeypatch)
    expected, other = run(Observing(asked), transfer, monkeypatch)
    assert len(expected) > 100
    assert bets == expected
    assert told.resampled == asked.resampled == 1
    assert cache.counters == other.counters
    assert cache.residency.members(Role.RESIDENT) == other.residency.members(Role.RESIDENT)
    tables = asked.tables()
    for key, table in told.tables().items():
        np.testing.assert_array_equal(table, tables[key], err_msg=key)


def test_new_tokens_between_the_outermost_layers_are_left_to_the_library() -> None:
    predictor = MAKERS["learned"]()
    assert isinstance(predictor, Telling)
    left = []
    for step in steps():
        teller = predictor.teller(step)
        if teller is None:
            predictor.observe(step, None)
        left.append((step.step, step.layer, teller is not None))
    for step, has_prompt in ((0, False), (79, False), (ALONE, True), (BESIDE, True)):
        layers = {
            (step, layer, 0 < layer < LAYERS - 1 and not has_prompt) for layer in range(LAYERS)
        }
        assert layers <= set(left)
