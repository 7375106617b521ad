"""The heat score, rule by rule, on a clock that only the test moves."""

import numpy as np
import pytest

from miractl.policy.brain import Brain
from miractl.policy.eviction import CompiledHeat, HeatEviction
from miractl.policy.heat import HeatTable
from miractl.policy.keys import ExpertKey
from miractl.policy.routing import Routed, Segment


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def heat_table(clock: Clock, **settings: float) -> HeatTable:
    return HeatTable(2, 4, 1, clock=clock, window=settings.pop("window", 1e9), **settings)


def step(table: HeatTable, *experts: int, layer: int = 0) -> None:
    counts = np.bincount(experts, minlength=4)
    table.activate(layer, counts, len(experts))


@pytest.mark.parametrize(
    ("idle", "expected"),
    [
        (0.0, 0.1),
        (0.099, 0.1),
        (0.1, 0.1 * 0.95),
        (0.25, 0.1 * 0.95**2),
        (0.3, 0.1 * 0.95**3),
        (3600.0, 0.1 * 0.95**36_000),
    ],
)
def test_an_activation_adds_a_tenth_and_each_idle_interval_takes_a_twentieth(
    clock: Clock, idle: float, expected: float
) -> None:
    table = heat_table(clock)
    step(table, 2)
    clock.now += idle
    assert table.scores(0)[2] == pytest.approx(expected)
    assert table.scores(0)[[0, 1, 3]].tolist() == [0, 0, 0]
    assert table.scores(1).tolist() == [0, 0, 0, 0]


def test_an_activation_restarts_the_decay(clock: Clock) -> None:
    table = heat_table(clock)
    for _ in range(3):
        step(table, 1)
        clock.now += 0.09
    assert table.scores(0)[1] == pytest.approx(0.3)


def test_the_score_never_leaves_the_unit_interval(clock: Clock) -> None:
    table = heat_table(clock)
    for _ in range(20):
        step(table, 0)
    assert table.scores(0)[0] == 1.0
    for _ in range(30):
        table.feedback(0, 1, used=False)
        table.feedback(0, 0, used=True)
    assert table.scores(0)[1] == 0.0
    assert table.scores(0)[0] == 1.0


@pytest.mark.parametrize(("used", "change"), [(True, 0.03), (False, -0.05)])
def test_feedback_of_a_prefetch(clock: Clock, used: bool, change: float) -> None:
    table = heat_table(clock)
    for _ in range(3):
        step(table, 0)
    table.feedback(0, 0, used)
    assert table.scores(0)[0] == pytest.approx(0.3 + change)


def test_feedback_does_not_delay_decay(clock: Clock) -> None:
    table = heat_table(clock)
    for _ in range(3):
        step(table, 0)
    clock.now = 0.08
    table.feedback(0, 0, used=True)
    clock.now = 0.1
    assert table.scores(0)[0] == pytest.approx(0.33 * 0.95)


def test_a_burst_inside_one_step_counts_as_one_activation(clock: Clock) -> None:
    """Eighty tokens of one prompt do not lift an expert over one that four steps used."""
    table = heat_table(clock)
    for _ in range(4):
        step(table, 0)
    step(table, *[1] * 80)
    scores = table.scores(0)
    assert scores[1] == pytest.approx(0.1)
    assert scores[0] == pytest.approx(0.4)


def test_the_end_of_a_window_adds_normalised_counts(clock: Clock) -> None:
    table = heat_table(clock, window=0.5, decay=1.0)
    step(table, 0, 0, 0, 0)
    step(table, 1)
    clock.now = 0.49
    assert table.scores(0)[:2].tolist() == pytest.approx([0.1, 0.1])
    clock.now = 0.5
    assert table.scores(0)[:2].tolist() == pytest.approx([0.1 + 0.1, 0.1 + 0.1 * 0.25])
    clock.now = 2.0  # an empty window adds nothing
    assert table.scores(0)[:2].tolist() == pytest.approx([0.2, 0.125])


def test_the_threshold_rises_with_the_tokens_of_a_step(clock: Clock) -> None:
    table = heat_table(clock, threshold=0.3)
    assert table.threshold == pytest.approx(0.3)
    seen = [table.threshold]
    for _ in range(200):
        step(table, 0, 1, 2, 3, 0, 1, 2, 3)
        seen.append(table.threshold)
    assert seen == sorted(seen)
    assert table.threshold == pytest.approx(min(0.9, 0.3 * (1 - 0.75**8) / 0.25), abs=1e-3)


@pytest.mark.usefixtures("kernels")
def test_the_policy_in_c_rates_as_the_one_in_python(clock: Clock) -> None:
    rng = np.random.default_rng(4)
    layers, experts = 3, 12
    tables = [HeatTable(layers, experts, 2, clock=clock, threshold=0.15) for _ in range(2)]
    plain = Brain(HeatEviction(tables[0], layers, experts), tables[0])
    compiled = Brain(CompiledHeat(tables[1], layers, experts), tables[1])
    for step in range(200):
        ids = rng.integers(0, experts, (int(rng.integers(1, 4)), 2))
        for layer in range(layers):
            clock.now += float(rng.exponential(0.05))
            segments = (Segment(0, 0, len(ids), step),)
            routed = Routed(layer, ids, np.ones(ids.shape, np.float32), segments, step)
            assert plain.record(routed) == compiled.record(routed) == (layer == 0)
            np.testing.assert_allclose(compiled.worth, plain.worth, rtol=1e-12)
        key = ExpertKey(int(rng.integers(layers)), int(rng.integers(experts)))
        for brain in (plain, compiled):
            brain.feedback(key, used=bool(step % 2))
    np.testing.assert_allclose(tables[1].scores(), tables[0].scores(), rtol=1e-12)
    assert tables[0].threshold == tables[1].threshold > 0.15
    np.testing.assert_array_equal(plain.activations, compiled.activations)
    unknown = np.array([[0, experts]])
    with pytest.raises(ValueError, match="of 12 experts"):
        compiled.rate(Routed(0, unknown, np.ones((1, 2), np.float32), (), 0))
