"""Choosing one request's next token."""

import pytest
import torch

from miractl.server.job import Sampling
from miractl.server.sampler import Sampler


def choice(sampler: Sampler, scores: list[float]) -> int:
    row = torch.tensor(scores)
    sampler.choose_in(row)
    assert sampler.error is None
    assert int(torch.isfinite(row).sum()) == 1
    return int(row.argmax())


def test_greedy_takes_the_first_of_equals() -> None:
    sampler = Sampler(Sampling(temperature=0))
    assert [choice(sampler, [1.0, 3.0, 3.0]) for _ in range(5)] == [1] * 5


@pytest.mark.parametrize("setting", [{"top_k": 1}, {"top_p": 0.0}, {"temperature": 1e-300}])
def test_narrow_settings_leave_only_the_best(setting: dict[str, float]) -> None:
    sampler = Sampler(Sampling(**{"temperature": 2.0, **setting}))  # type: ignore[arg-type]
    assert {choice(sampler, [1.0, 1.1, 1.05]) for _ in range(20)} == {1}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    scores = torch.tensor([0.5, 0.3, 0.2]).log().tolist()
    sampler = Sampler(Sampling(top_p=0.6, seed=1))
    assert {choice(sampler, scores) for _ in range(60)} == {0, 1}


def test_samples_follow_the_distribution() -> None:
    sampler = Sampler(Sampling(seed=3))
    scores = torch.tensor([0.7, 0.3]).log().tolist()
    share = sum(choice(sampler, scores) for _ in range(2000)) / 2000
    assert 0.26 < share < 0.34


def test_a_seed_repeats_its_choices() -> None:
    scores = [0.0] * 50

    def run(seed: int) -> list[int]:
        sampler = Sampler(Sampling(seed=seed))
        return [choice(sampler, scores) for _ in range(8)]

    assert run(1) == run(1)
    assert run(-1) != run(1)


def test_penalties_count_what_was_chosen() -> None:
    sampler = Sampler(Sampling(temperature=0, frequency_penalty=1.0, presence_penalty=0.5))
    assert [choice(sampler, [2.0, 0.0]) for _ in range(4)] == [0, 0, 1, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_no_numbers_fail_this_request_alone(bad: float) -> None:
    sampler = Sampler(Sampling())
    sampler.choose_in(torch.full((4,), bad))
    assert sampler.error is not None
    assert "not finite" in sampler.error
