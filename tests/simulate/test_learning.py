"""The learner: equal to the last bit in C and numpy, looks at nothing to come, and learns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.native.learner import Learner, LearnerState, discount_for
from miractl.native.replay import Admission, Cache, Kind, Routing, Rule, replay
from miractl.simulate import reference
from miractl.simulate.learning import LearnedWorth, ReferenceLearner, logarithms, sigmoid
from tests.simulate.conftest import SHAPES, random_routing

pytestmark = pytest.mark.usefixtures("kernels")
KNOWN = ("weights", "weight_sums", "bias", "table", "table_sums", "counts", "totals", "averages")


def feed(learner: Learner | ReferenceLearner, routing: Routing, tokens: int | None = None) -> None:
    for token in range(routing.tokens)[:tokens]:
        for layer in range(routing.layers):
            learner.record(
                *(layer, routing.ids[token, layer], routing.probabilities[token, layer]),
                starts=bool(routing.starts[token]),
            )


def state_for(routing: Routing, window: int = 6) -> LearnerState:
    return LearnerState(
        *(routing.layers, routing.experts, routing.top, discount_for(3, routing.top)),
        window=window,
    )


@settings(deadline=None, max_examples=15)
@given(**SHAPES)
def test_c_and_numpy_learn_the_same_bits(
    seed: int, tokens: int, layers: int, experts: int, top: int, texts: int
) -> None:
    routing = random_routing(seed, tokens, layers, experts, top, texts)
    fast, slow = Learner(state_for(routing)), ReferenceLearner(state_for(routing))
    feed(fast, routing)
    feed(slow, routing)
    for layer in range(layers):
        expected = slow.state.scores[layer, :experts]
        np.testing.assert_array_equal(fast.rows[layer], expected)
    for name in KNOWN:
        one, other = getattr(fast.state, name), getattr(slow.state, name)
        np.testing.assert_array_equal(one, other, err_msg=name)
    assert fast.token == slow.state.token == tokens - 1


@settings(deadline=None, max_examples=10)
@given(
    seed=st.integers(0, 2**31),
    pooled=st.booleans(),
    admission=st.sampled_from([Admission.ALWAYS, Admission.WORTHIER]),
)
def test_a_replay_decides_the_same(seed: int, pooled: bool, admission: Admission) -> None:
    routing = random_routing(seed, 30, 3, 8, 2)
    cache = Cache((9,) if pooled else (3, 3, 3), pooled, admission)
    fast = replay(routing, cache, Rule(Kind.LEARNED, learner=Learner(state_for(routing))))
    slow = reference.replay(routing, cache, LearnedWorth(routing, state_for(routing)))
    np.testing.assert_array_equal(fast.hits, slow.hits)
    np.testing.assert_array_equal(fast.entered, slow.entered)


def test_a_score_knows_nothing_of_what_comes() -> None:
    routing = random_routing(3, 60, 4, 12, 2, texts=3)
    part, whole = Learner(state_for(routing)), Learner(state_for(routing))
    feed(part, routing, tokens=40)
    feed(whole, routing, tokens=40)
    token = [routing.ids[40, layer] for layer in range(4)]
    gates = np.full(2, 0.5, np.float32)
    for layer in range(4):
        part.record(layer, token[layer], gates)
        other = token[layer] if layer < 2 else (token[layer] + 1) % 12
        whole.record(layer, other, gates)
    for layer in range(4):
        assert (part.rows[layer] == whole.rows[layer]).all() == (layer < 2)


def test_it_learns_what_recency_cannot() -> None:
    # Twelve experts in a fixed cycle: each is used again in twelve tokens, so LRU never hits.
    ids = (np.arange(1500) % 12).reshape(-1, 1, 1)
    routing = Routing(ids, 12)
    cache = Cache((6,), admission=Admission.WORTHIER)
    state = LearnerState(1, 12, 1, discount_for(6, 1))
    learned = replay(routing, cache, Rule(Kind.LEARNED, learner=Learner(state))).hits
    assert replay(routing, cache, Rule(Kind.LRU)).hits.sum() == 0
    best = replay(routing, cache, Rule(Kind.BELADY)).hits[1000:].mean()
    assert learned[1000:].mean() > 0.9 * best


def test_functions_are_close_to_their_namesakes() -> None:
    x = np.geomspace(1e-9, 1e4, 4000).astype(np.float32)
    np.testing.assert_allclose(logarithms(x), np.log(x + 0.004) + 2, atol=2e-6)
    x = np.linspace(-29, 29, 4000).astype(np.float32)
    np.testing.assert_allclose(sigmoid(x), 1 / (1 + np.exp(-x.astype(float))), rtol=3e-6)


def test_counts_halve_before_they_are_too_large() -> None:
    routing = Routing(np.zeros((4200, 1, 1), np.int64), 2)
    fast, slow = Learner(state_for(routing)), ReferenceLearner(state_for(routing))
    feed(fast, routing)
    feed(slow, routing)
    assert fast.state.totals.max() < 4096
    np.testing.assert_array_equal(fast.state.counts, slow.state.counts)


def test_what_has_faded_is_gone() -> None:
    """Numbers too small to be normal would make every long text slow."""
    routing = Routing(np.ones((700, 1, 1), np.int64), 4)
    learner = Learner(state_for(routing))
    learner.record(0, np.array([2]), np.ones(1))
    feed(learner, routing)
    for name in ("averages", "gate", "trails"):
        values = getattr(learner.state, name)
        assert values[values > 0].min() >= 2.0**-40, name
        assert (values == 0).any(), name


def test_what_makes_no_model_is_refused() -> None:
    for sizes in ((0, 4, 1), (1, 4, 5), (1, 4, 0)):
        with pytest.raises(ValueError, match="Got layers"):
            LearnerState(*sizes, 0.5)
    with pytest.raises(ValueError, match="discount"):
        LearnerState(1, 4, 1, 1.0)
    learner = Learner(LearnerState(2, 4, 2, 0.5))
    gates = np.full(2, 0.5)
    with pytest.raises(ValueError, match="Got layer = 2"):
        learner.record(2, np.array([0, 1]), gates)
    with pytest.raises(ValueError, match="of 4 experts"):
        learner.record(0, np.array([0, 4]), gates)
    with pytest.raises(ValueError, match="Got ids"):
        learner.record(0, np.array([0]), gates)


def test_a_learner_of_another_model_is_refused() -> None:
    routing = random_routing(1, 5, 2, 4, 2)
    cache = Cache((2, 2))
    other = Learner(LearnerState(2, 4, 1, 0.5))
    with pytest.raises(ValueError, match="Got a learner of"):
        replay(routing, cache, Rule(Kind.LEARNED, learner=other))
    with pytest.raises(ValueError, match="or none for LEARNED"):
        replay(routing, cache, Rule(Kind.LEARNED))
