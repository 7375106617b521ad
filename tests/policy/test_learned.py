"""The learned policy: whose scores count, what a prompt teaches, and what is kept of a sequence."""

import os
from collections.abc import Iterator

import numpy as np
import pytest

from miractl.native import available, why_not
from miractl.native.learner import SHARED, Learner
from miractl.policy import learned
from miractl.policy.keys import NOBODY
from miractl.policy.learned import Learned
from miractl.policy.routing import Routed, Segment
from tests.simulate.conftest import random_routing

LAYERS, EXPERTS, TOP = 3, 12, 2
ROUTING = random_routing(5, 120, LAYERS, EXPERTS, TOP)
IDS, SCORES = ROUTING.ids.astype(np.int64), ROUTING.probabilities


@pytest.fixture
def policy() -> Iterator[Learned]:
    if not available():
        if os.environ.get("MIRACTL_REQUIRE_NATIVE"):
            pytest.fail(str(why_not()))
        pytest.skip(str(why_not()))
    made = Learned(LAYERS, EXPERTS, TOP, slots=3)
    yield made
    made.close()


def step(policy: Learned, number: int, *runs: tuple[int, int, int, int]) -> list[bool]:
    """A step of runs (sequence, position, first token of ROUTING, tokens)."""
    rows = np.concatenate([np.arange(first, first + count) for _, _, first, count in runs])
    segments, at = [], 0
    for sequence, position, _, count in runs:
        segments.append(Segment(sequence, at, at + count, position))
        at += count
    return [
        policy.record(Routed(layer, IDS[rows, layer], SCORES[rows, layer], tuple(segments), number))
        for layer in range(LAYERS)
    ]


def known(policy: Learned) -> list[np.ndarray]:
    policy.tables()  # waits for the lessons
    return [getattr(policy.state, name).copy() for name in SHARED]


def oracle(policy: Learned) -> Learner:
    state = type(policy.state)(
        *(LAYERS, EXPERTS, TOP, policy.state.discount), window=policy.state.window
    )
    return Learner(state)


def feed(learner: Learner, first: int, count: int, starts: bool = False) -> None:
    for token in range(first, first + count):
        for layer in range(LAYERS):
            begins = starts and token == first
            learner.record(layer, ROUTING.ids[token, layer], SCORES[token, layer], begins)


def test_a_prompt_teaches_what_its_tokens_would_one_by_one(policy: Learned) -> None:
    whole = oracle(policy)
    feed(whole, 0, 40)
    assert step(policy, 0, (1, 0, 0, 40)) == [False] * LAYERS
    for name, found in zip(SHARED, known(policy), strict=True):
        np.testing.assert_array_equal(found, getattr(whole.state, name), err_msg=name)


def test_scores_of_a_prompt_count_from_the_step_after(policy: Learned) -> None:
    step(policy, 0, (1, 0, 0, 40))
    assert not policy.worth.any()
    assert step(policy, 1, (1, 40, 40, 1)) == [True, False, False]
    assert policy.worth.all()
    alone = oracle(policy)
    feed(alone, 0, 41)
    nearer = np.log(np.float64(np.float32(policy.state.discount)))
    for layer in range(LAYERS):
        expected = alone.rows[layer] + (1 + layer / LAYERS) * nearer
        np.testing.assert_allclose(policy.worth[layer], expected, rtol=1e-12)


def test_of_a_long_prompt_the_end_is_learned(
    policy: Learned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned, "PROMPT_TOKENS", 15)
    part = oracle(policy)
    feed(part, 25, 15, starts=True)
    step(policy, 0, (1, 0, 0, 40))
    for name, found in zip(SHARED, known(policy), strict=True):
        np.testing.assert_array_equal(found, getattr(part.state, name), err_msg=name)


def test_worth_in_a_batch_is_that_anyone_uses_the_expert(policy: Learned) -> None:
    for token in range(30):
        step(policy, token, (1, token, token, 1), (2, token, 60 + token, 1))
    one, two = policy._course.learners
    for layer in range(LAYERS):
        chances = 1 / (
            1
            + np.exp(
                -np.stack([each.state.scores[layer, :EXPERTS] for each in (one, two)]).astype(float)
            )
        )
        anyone = 1 - np.prod(1 - chances, axis=0)
        nearer = (29 + layer / LAYERS) * np.log(np.float64(np.float32(policy.state.discount)))
        expected = np.log(anyone / (1 - anyone)) + nearer
        np.testing.assert_allclose(policy.worth[layer], expected, rtol=1e-6, atol=2e-6)
    assert (one.state.scores[0] != two.state.scores[0]).any()


def test_worth_in_a_large_batch_stays_a_number(policy: Learned) -> None:
    step(policy, 0, *((number, 0, number, 1) for number in range(40)))
    for learner in policy._course.learners:
        learner.state.scores[:] = 29.0
    policy._course.weigh(0)
    assert np.isfinite(policy.worth[0]).all()
    assert (policy.worth[0] > 50).all()  # of one alone it is 29


def test_sequences_do_not_see_each_others_tokens(policy: Learned) -> None:
    """Side by side with another, a sequence's ring and trails are what they are alone."""
    for token in range(20):
        step(policy, token, (1, token, token, 1), (2, token, 60 + token, 1))
    alone = oracle(policy)
    feed(alone, 60, 20)
    policy.tables()
    for name in ("trails", "ids", "gate"):
        found = getattr(policy._streams[2].state, name)
        np.testing.assert_array_equal(found, getattr(alone.state, name), err_msg=name)


def test_a_new_sequence_knows_nothing_of_the_last(policy: Learned) -> None:
    for token in range(30):
        step(policy, token, (1, token, token, 1))
    policy.tables()
    fresh, first = policy._stream(Segment(2, 0, 1, 0)).state, oracle(policy).state
    for name in ("trails", "averages", "gate", "features", "scores"):
        np.testing.assert_array_equal(getattr(fresh, name), getattr(first, name), err_msg=name)


def test_streams_are_bounded_and_the_oldest_go(policy: Learned) -> None:
    for sequence in range(policy._most + 5):
        step(policy, sequence, (sequence, 0, sequence % 100, 1))
    assert list(policy._streams) == list(range(5, policy._most + 5))
    runs = [(1000 + n, 0, n % 100, 1) for n in range(policy._most + 9)]
    step(policy, 900, *runs)  # more at once than there is room for
    assert len(policy._streams) == policy._most


def test_padding_teaches_nothing(policy: Learned) -> None:
    before = known(policy)
    step(policy, 0, (NOBODY, 0, 0, 30))
    for one, other in zip(before, known(policy), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not policy._streams


def test_a_step_that_broke_off_teaches_nothing(policy: Learned) -> None:
    ids, scores = IDS[:9, 0], SCORES[:9, 0]
    before = known(policy)
    policy.record(Routed(0, ids, scores, (Segment(1, 0, 9, 0),), 0))
    step(policy, 1, (NOBODY, 0, 0, 1))
    for one, other in zip(before, known(policy), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_router_may_name_an_expert_twice(policy: Learned) -> None:
    twice = np.full((2, TOP), 3)
    for layer in range(LAYERS):
        policy.record(Routed(layer, twice, SCORES[:2, 0], (Segment(1, 0, 2, 0),), 0))
    for layer in range(LAYERS):
        policy.record(Routed(layer, twice[:1], SCORES[:1, 0], (Segment(1, 0, 1, 2),), 1))
        assert np.isfinite(policy.worth[layer]).all()
        assert policy.worth[layer].argmax() == 3


def test_experts_that_do_not_exist_are_refused(policy: Learned) -> None:
    wrong = Routed(
        0, np.array([[0, EXPERTS]]), np.ones((1, 2), np.float32), (Segment(1, 0, 1, 0),), 0
    )
    with pytest.raises(ValueError, match="of 12 experts"):
        policy.record(wrong)
