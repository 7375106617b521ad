"""The next-layer predictor: equal to the last bit in C and numpy, calibrated, and it learns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.native.predictor import Predictor, PredictorState
from miractl.native.replay import Routing
from miractl.simulate.predicting import ReferencePredictor
from tests.simulate.conftest import random_routing

pytestmark = pytest.mark.usefixtures("kernels")
KNOWN = ("weights", "weight_sums", "table", "table_sums", "counts", "totals", "averages")


def feed(predictor: Predictor | ReferencePredictor, routing: Routing) -> None:
    for token in range(routing.tokens):
        for layer in range(routing.layers):
            predictor.predict(layer, starts=bool(routing.starts[token]))
            predictor.confirm(layer, routing.ids[token, layer])


def state_for(routing: Routing) -> PredictorState:
    return PredictorState(routing.layers, routing.experts, routing.top)


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 2**31),
    tokens=st.integers(1, 40),
    layers=st.integers(1, 6),
    experts=st.integers(2, 20),
    top=st.integers(1, 2),
    texts=st.integers(1, 4),
)
def test_c_and_numpy_predict_the_same_bits(
    seed: int, tokens: int, layers: int, experts: int, top: int, texts: int
) -> None:
    routing = random_routing(seed, tokens, layers, experts, top, texts)
    fast, whole = Predictor(state_for(routing)), Predictor(state_for(routing))
    slow = ReferencePredictor(state_for(routing))
    feed(fast, routing)
    feed(slow, routing)
    whole.foresee(routing)
    for name in (*KNOWN, "scores"):
        expected = getattr(slow.state, name)
        if name == "scores":
            expected = expected[:, :experts]
        for own in (fast, whole):
            found = getattr(own.state, name)[..., : expected.shape[-1]]
            np.testing.assert_array_equal(found, expected, err_msg=name)


def test_a_layer_that_follows_the_one_before_is_foreseen() -> None:
    rng = np.random.default_rng(1)
    first = np.argsort(rng.random((1200, 12)), axis=1)[:, :2]
    ids = np.stack([first, (first + 5) % 12, (first * 7) % 12], axis=1)
    routing = Routing(ids, 12)
    found = Predictor(state_for(routing)).foresee(routing)
    late = found.ranks[800:]
    assert (late[:, 1:] < 2).mean() > 0.98
    assert (late[:, 0] < 2).mean() < 0.3  # the first layer is random


def test_probabilities_come_true_as_often_as_they_say() -> None:
    routing = random_routing(3, 1500, 3, 12, 2)
    found = Predictor(state_for(routing)).foresee(routing)
    assert found.predictions.sum() == 1500 * 2 * 12
    assert found.observed.sum() == 1500 * 2 * 2
    often = found.predictions > 500
    off = np.abs(found.expected - found.observed)[often] / found.predictions[often]
    assert off.max() < 0.07


def test_ranks_are_places_in_the_order_of_probability() -> None:
    routing = random_routing(4, 30, 2, 8, 2)
    ranks = Predictor(state_for(routing)).foresee(routing).ranks
    again = Predictor(state_for(routing))
    for token in range(30):
        for layer in range(2):
            again.predict(layer, starts=bool(routing.starts[token]))
            order = np.argsort(-again.state.scores[layer, :8], kind="stable").tolist()
            places = [order.index(expert) for expert in routing.ids[token, layer]]
            assert ranks[token, layer].tolist() == places
            again.confirm(layer, routing.ids[token, layer])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="Got layers"):
        PredictorState(1, 2, 3)
    predictor = Predictor(PredictorState(2, 4, 2))
    with pytest.raises(ValueError, match="Got layer = 2"):
        predictor.predict(2)
    with pytest.raises(ValueError, match="of 4 experts"):
        predictor.confirm(0, np.array([0, 4]))
    with pytest.raises(ValueError, match="Got a predictor of"):
        predictor.foresee(random_routing(0, 2, 1, 4, 2))
