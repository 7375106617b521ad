"""The runtime's own slot table and policies over a recording: the decisions of the replay in C."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.errors import UsageError
from miractl.native.learner import Learner, LearnerState, discount_for, window_for
from miractl.native.replay import Cache, Kind, Routing, Rule, replay
from miractl.policy.registry import ONLINE, POLICIES, ways_for
from miractl.simulate.driving import Drive, Slots, drive
from miractl.telemetry.trace import Trace
from tests.simulate.conftest import random_routing

pytestmark = pytest.mark.usefixtures("kernels")
TOKEN_SECONDS = 0.07


def trace_of(routing: Routing, steps: np.ndarray | None = None) -> Trace:
    """One text, decoded token by token unless `steps` says otherwise."""
    return Trace(
        "t.npz",
        routing.ids.astype(np.int64),
        routing.probabilities,
        (routing.tokens,),
        experts=routing.experts,
        steps=np.arange(routing.tokens) if steps is None else steps,
    )


def driven(routing: Routing, name: str, slots: int) -> Drive:
    ways = (slots,) * routing.layers
    return drive(trace_of(routing), name, Slots(sum(ways) + routing.top, ways), TOKEN_SECONDS)


def replayed(routing: Routing, name: str, slots: int) -> tuple[np.ndarray, np.ndarray]:
    policy, learner = POLICIES[name], None
    if policy.kind is Kind.LEARNED:
        sizes = (routing.layers, routing.experts, routing.top)
        discount = discount_for(slots, routing.top)
        state = LearnerState(*sizes, discount, window=window_for(slots, routing.top))
        learner = Learner(state)
    ways = ways_for(name, (slots,) * routing.layers)
    cache = Cache(ways, policy.pooled, policy.admission, policy.shifts)
    outcome = replay(
        routing, cache, Rule(policy.kind, token_seconds=TOKEN_SECONDS, learner=learner)
    )
    return outcome.hits.sum(axis=(0, 2)), outcome.entered


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    layers=st.integers(1, 4),
    experts=st.integers(3, 9),
    top=st.integers(1, 3),
    more=st.integers(0, 3),
    name=st.sampled_from([name for name in ONLINE if name != "random"]),
)
def test_decides_as_the_replay(
    seed: int, layers: int, experts: int, top: int, more: int, name: str
) -> None:
    routing = random_routing(seed, 40, layers, experts, top)
    routing = Routing(np.sort(routing.ids, axis=2), experts, routing.probabilities)
    slots = min(experts, top + more)
    found, (hits, entered) = driven(routing, name, slots), replayed(routing, name, slots)
    np.testing.assert_array_equal(found.hits, hits)
    np.testing.assert_array_equal(found.entered, entered)
    assert found.lookups.sum() == routing.ids.size


@pytest.mark.parametrize("name", ["lru", "learned-layer", "learned-bypass", "learned"])
def test_decides_as_the_replay_in_the_order_that_routers_give(name: str) -> None:
    routing = random_routing(7, 250, 5, 24, 4)
    np.testing.assert_array_equal(driven(routing, name, 8).hits, replayed(routing, name, 8)[0])


def test_an_expert_counts_once_a_step() -> None:
    routing = random_routing(3, 30, 2, 8, 2)
    prompt = trace_of(routing, np.where(np.arange(30) < 20, 0, np.arange(30) - 19))
    found = drive(prompt, "lru", Slots(16, (8, 8)), TOKEN_SECONDS)
    assert (found.steps, found.tokens) == (11, 30)
    unique = [len(np.unique(routing.ids[:20, layer])) for layer in range(2)]
    assert found.lookups.tolist() == [count + 20 for count in unique]
    absent = [len(np.unique(routing.ids[:, layer])) for layer in range(2)]
    assert (found.lookups - found.hits).tolist() == absent


def test_a_recording_without_steps_is_refused() -> None:
    trace = Trace("t.npz", np.zeros((2, 1, 1), np.int64))
    with pytest.raises(UsageError, match="does not say which tokens were computed together"):
        drive(trace, "lru", Slots(2, (1,)), TOKEN_SECONDS)
