"""Policies side by side: what is measured by what, and what the sentence says."""

import numpy as np
import pytest

from miractl.errors import UsageError
from miractl.native.replay import Routing
from miractl.policy.registry import POLICIES
from miractl.simulate.study import compare, routing_of, slots_for, verdict
from miractl.telemetry.trace import Trace
from tests.simulate.conftest import random_routing

pytestmark = pytest.mark.usefixtures("kernels")


def test_every_policy_is_between_its_rivals_and_its_optimum() -> None:
    routing = random_routing(5, 400, 3, 16, 2)
    scores = {score.policy: score for score in compare(routing, 4, list(POLICIES))}
    assert list(scores) == list(POLICIES)
    for name, score in scores.items():
        optimum = scores[POLICIES[name].optimum]
        assert score.hit_rate <= optimum.hit_rate
        assert score.gap is not None
        assert score.gap <= 1.0
        assert np.mean(score.layer_rates) == pytest.approx(score.hit_rate)
        assert score.misses_per_token == pytest.approx((1 - score.hit_rate) * 6)
    assert scores["lru"].gap == 0
    assert scores["optimum"].gap == scores["belady"].gap == 1
    assert scores["learned"].hit_rate > scores["random"].hit_rate
    assert scores["learned"].entered_per_token < scores["lru"].entered_per_token


def test_only_what_was_asked_for_is_told() -> None:
    routing = random_routing(5, 50, 2, 8, 2)
    assert [s.policy for s in compare(routing, 4, ["heat", "lru"])] == ["lru", "heat"]


def test_no_gap_where_lru_is_the_optimum() -> None:
    routing = random_routing(5, 50, 2, 8, 2)
    assert [score.gap for score in compare(routing, 8, ["lru", "learned"])] == [None, None]


def test_shares_become_slots() -> None:
    routing = random_routing(0, 2, 1, 32, 4)
    assert [slots_for(share, routing) for share in (0.001, 0.125, 0.25, 1)] == [1, 4, 8, 32]


def test_a_trace_becomes_routing() -> None:
    ids = np.array([[[0, 1]], [[2, 1]], [[0, 2]]])
    routing = routing_of(Trace("t.npz", ids, lengths=(2, 0, 1)))
    assert routing.experts == 3
    assert routing.starts.tolist() == [1, 0, 1]
    assert routing_of(Trace("t.npz", ids, experts=8)).experts == 8
    with pytest.raises(UsageError, match=r"trace t\.npz: Got an expert twice"):
        routing_of(Trace("t.npz", np.zeros((1, 1, 2), np.int64)))


@pytest.mark.parametrize(
    ("ids", "slots", "said"),
    [
        (np.arange(600) % 12, 6, "The working set is too large for 6 slots a layer"),
        (np.arange(600) % 7, 6, "The policy is to blame"),
        (np.arange(600) % 5, 6, "Nearly all that is used fits"),
    ],
)
def test_the_sentence(ids: np.ndarray, slots: int, said: str) -> None:
    routing = Routing(ids.reshape(-1, 1, 1), 12)
    assert said in verdict(compare(routing, slots, ["lru", "optimum"]))
