"""The Markov table, and which candidates a guess yields."""

import numpy as np
import pytest

from miractl.policy.keys import ExpertKey
from miractl.policy.prediction import MarkovTable, candidates


def ids(*tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def test_a_repeated_transition_is_learned() -> None:
    table = MarkovTable(layers=2, experts=4, top_k=1)
    for _ in range(20):
        table.observe(0, ids([1]))
        table.observe(1, ids([3]))
    wanted = table.predict(0, ids([1]))
    assert wanted is not None
    assert wanted.argmax() == 3
    assert wanted[3] == pytest.approx(20.5 / 22)


def test_an_unknown_history_predicts_every_expert_alike() -> None:
    wanted = MarkovTable(layers=2, experts=4, top_k=2).predict(0, ids([0, 1]))
    assert wanted is not None
    assert wanted.tolist() == pytest.approx([0.5] * 4)


def test_more_tokens_want_more_experts() -> None:
    table = MarkovTable(layers=2, experts=4, top_k=1)
    one, two = table.predict(0, ids([0])), table.predict(0, ids([0], [1]))
    assert one is not None
    assert two is not None
    assert two[0] == pytest.approx(1 - (1 - one[0]) ** 2)


def test_only_neighbouring_layers_of_the_same_tokens_are_paired() -> None:
    table = MarkovTable(layers=3, experts=4, top_k=1)
    table.observe(0, ids([0]))
    table.observe(2, ids([1]))  # layer 1 was skipped
    table.observe(1, ids([2], [3]))  # and these are other tokens
    for layer in (0, 1):
        wanted = table.predict(layer, ids([0]))
        assert wanted is not None
        assert wanted.tolist() == pytest.approx([0.25] * 4)


def test_nothing_follows_the_last_layer() -> None:
    assert MarkovTable(layers=2, experts=4, top_k=1).predict(1, ids([0])) is None


@pytest.mark.parametrize(
    ("confidence", "expected"), [(0.1, [2]), (0.5, [2]), (0.6, [2, 0]), (1.0, [2, 0, 3, 1])]
)
def test_candidates_come_by_falling_probability_up_to_the_confidence(
    confidence: float, expected: list[int]
) -> None:
    found = list(candidates(7, np.array([0.3, 0.05, 0.55, 0.1]), confidence))
    assert [key for key, _ in found] == [ExpertKey(7, expert) for expert in expected]
    assert [p for _, p in found] == sorted((p for _, p in found), reverse=True)
