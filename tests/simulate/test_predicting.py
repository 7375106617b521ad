"""The next-layer predictor: equal to the last bit in C and numpy, calibrated, and it learns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.native.predictor import Predictor, PredictorState
from miractl.native.replay import Routing
from miractl.simulate.predicting import ReferencePredictor
from tests.simulate.conftest import SHAPES, random_routing

pytestmark = pytest.mark.usefixtures("kernels")
KNOWN = ("weights", "weight_sums", "table", "table_sums", "counts", "totals", "averages")


def feed(predictor: Predictor | ReferencePredictor, routing: Routing) -> None:
    ahead = predictor.state.ahead
    for token in range(routing.tokens):
        predictor.begin(bool(routing.starts[token]))
        for layer in range(min(ahead, routing.layers)):
            predictor.predict(layer)
        for layer in range(routing.layers):
            predictor.confirm(layer, routing.ids[token, layer])
            if layer + ahead < routing.layers:
                predictor.predict(layer + ahead)


def state_for(routing: Routing, ahead: int = 1) -> PredictorState:
    return PredictorState(routing.layers, routing.experts, routing.top, ahead=ahead)


def ranks_of(probabilities: np.ndarray, routing: Routing) -> np.ndarray:
    """Place of each chosen expert by probability, 0 the most probable."""
    chosen = np.take_along_axis(probabilities, routing.ids.astype(np.int64), axis=2)
    return (probabilities[..., None, :] > chosen[..., None]).sum(axis=-1)


@settings(deadline=None, max_examples=15)
@given(**SHAPES, ahead=st.integers(1, 3))
def test_c_and_numpy_predict_the_same_bits(
    seed: int, tokens: int, layers: int, experts: int, top: int, texts: int, ahead: int
) -> None:
    routing = random_routing(seed, tokens, layers, experts, top, texts)
    fast, whole = Predictor(state_for(routing, ahead)), Predictor(state_for(routing, ahead))
    slow = ReferencePredictor(state_for(routing, ahead))
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
    late = ranks_of(Predictor(state_for(routing)).foresee(routing), routing)[800:]
    assert (late[:, 1:] < 2).mean() > 0.98
    assert (late[:, 0] < 2).mean() < 0.3  # the first layer is random


def test_what_is_two_layers_ahead_is_foreseen_too() -> None:
    rng = np.random.default_rng(1)
    first = np.argsort(rng.random((1500, 12)), axis=1)[:, :2]
    routing = Routing(np.stack([first, (first + 5) % 12, (first * 7) % 12], axis=1), 12)
    late = ranks_of(Predictor(state_for(routing, 2)).foresee(routing), routing)[1000:]
    assert (late[:, 2] < 2).mean() > 0.98
    assert (late[:, 1] < 2).mean() < 0.3  # known only when the first layer is


def test_probabilities_come_true_as_often_as_they_say() -> None:
    routing = random_routing(3, 1500, 3, 12, 2)
    probabilities = Predictor(state_for(routing)).foresee(routing)
    chosen = np.zeros(probabilities.shape, bool)
    np.put_along_axis(chosen, routing.ids.astype(np.int64), True, axis=2)
    said, came = probabilities[:, 1:].ravel(), chosen[:, 1:].ravel()
    for low in np.arange(0, 1, 0.1):
        alike = (said >= low) & (said < low + 0.1)
        if alike.sum() > 500:
            assert abs(said[alike].mean() - came[alike].mean()) < 0.07


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
