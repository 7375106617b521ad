"""Whose tokens a step has: by positions, in batches with and without padding."""

from typing import Any

import pytest
import torch
from transformers import ContinuousBatchingConfig, DynamicCache, GenerationConfig

from miractl.policy.keys import NOBODY
from miractl.policy.routing import Segment
from miractl.runtime.sequences import CACHES, MOST, PATIENCE, Sequences, _runs
from tests.runtime.models import make_model

PAIR = torch.ones(2, 1)


def names(sequences: Sequences, *runs: tuple[int | None, int]) -> list[int]:
    sequences.begin(runs)
    rows = sum(length for _, length in runs)
    return [segment.sequence for segment in sequences.segments(rows)]


def test_a_sequence_is_followed_through_its_positions() -> None:
    sequences = Sequences()
    assert names(sequences, (0, 10)) == [0]
    assert names(sequences, (10, 1)) == [0]
    assert names(sequences, (11, 1), (0, 5)) == [0, 1]
    assert names(sequences, (5, 3), (12, 1)) == [1, 0]
    assert names(sequences, (0, 4), (8, 1)) == [2, 1]
    assert sequences.step == 4


def test_a_text_that_has_ended_is_not_continued_by_another() -> None:
    sequences = Sequences()
    assert names(sequences, (0, 4)) == [0]  # ends after one prompt of four tokens
    assert names(sequences, (0, 4), (0, 9)) == [1, 2]
    assert names(sequences, (4, 1), (9, 1)) == [1, 2]


def test_two_at_the_same_position_keep_their_order() -> None:
    sequences = Sequences()
    assert names(sequences, (0, 4), (0, 4), (0, 4)) == [0, 1, 2]
    for position in range(4, 9):
        assert names(sequences, (position, 1), (position, 1), (position, 1)) == [0, 1, 2]


def test_who_continues_nobody_begins_and_padding_is_nobodys() -> None:
    sequences = Sequences()
    assert names(sequences, (7, 2), (None, 3)) == [0, NOBODY]
    assert names(sequences, (9, 1)) == [0]
    assert names(sequences, (11, 1)) == [1]


def test_segments_are_those_of_the_pass_or_nobodys() -> None:
    sequences = Sequences()
    assert sequences.segments(3) == (Segment(NOBODY, 0, 3, 0),)
    sequences.begin([(0, 2), (5, 1)])
    assert sequences.segments(3) == (Segment(0, 0, 2, 0), Segment(1, 2, 3, 5))
    assert sequences.segments(4) == (Segment(NOBODY, 0, 4, 0),)
    sequences.begin(None)
    assert sequences.segments(3) == (Segment(NOBODY, 0, 3, 0),)


def test_sequences_not_seen_for_long_are_forgotten() -> None:
    sequences = Sequences()
    names(sequences, (0, 4))
    for _ in range(PATIENCE):
        names(sequences, (0, 1))
    assert names(sequences, (4, 1)) == [PATIENCE + 1]
    names(sequences, *[(0, 1)] * (MOST + 100))
    assert len(sequences._live) == MOST


@pytest.mark.parametrize(
    ("told", "runs"),
    [
        ({"input_ids": torch.ones(2, 3)}, [(0, 3), (0, 3)]),
        (
            {"input_ids": torch.ones(2, 1), "position_ids": torch.tensor([[4], [7]])},
            [(4, 1), (7, 1)],
        ),
        ({"input_ids": torch.ones(2, 1), "position_ids": torch.tensor([[4]])}, [(4, 1), (4, 1)]),
        (
            {
                "input_ids": torch.ones(2, 4),
                "position_ids": torch.tensor([[0, 0, 0, 1], [0, 1, 2, 3]]),
                "attention_mask": torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]),
            },
            [(None, 2), (0, 2), (0, 4)],
        ),
        (
            {
                "inputs_embeds": torch.ones(1, 5, 8),
                "position_ids": torch.tensor([[6, 7, 8, 0, 1]]),
                "cu_seq_lens_q": torch.tensor([0, 1, 3, 3, 5]),
            },
            [(6, 1), (7, 2), (0, 2)],
        ),
        (
            {"input_ids": torch.ones(1, 2), "position_ids": torch.ones(3, 1, 2).cumsum(2)},
            [(1, 2)],
        ),
        (
            {"input_ids": torch.ones(1, 4), "position_ids": torch.tensor([[0, 1, 0, 1]])},
            [(0, 2)] * 2,
        ),
    ],
)
def test_what_a_model_is_told(told: dict[str, Any], runs: list[tuple[int | None, int]]) -> None:
    assert _runs(told, None) == runs


def watched(model: torch.nn.Module) -> list[list[tuple[int, int, int]]]:
    """Sequence, position and tokens of each segment of each pass that the model will make."""
    sequences, seen = Sequences(), []
    sequences.watch(model)

    def note(*_: Any) -> None:
        seen.append([(s.sequence, s.position, len(s)) for s in sequences._segments])

    model.register_forward_pre_hook(note)
    return seen


def test_generate_with_padding_on_the_left(tmp_path: Any) -> None:
    model = make_model(tmp_path, "Qwen3Moe")
    seen = watched(model)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    model.generate(torch.ones(2, 5, dtype=torch.int64), attention_mask=mask, max_new_tokens=3)
    assert seen == [
        [(NOBODY, 0, 2), (0, 0, 3), (1, 0, 5)],
        [(0, 3, 1), (1, 5, 1)],
        [(0, 4, 1), (1, 6, 1)],
    ]


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_alone_tells_how_far_a_text_is(name: str) -> None:
    cache = DynamicCache()
    assert _runs({"input_ids": torch.ones(2, 4), name: cache}, None) == [(0, 4)] * 2
    cache.update(*torch.ones(2, 2, 3, 4, 8), 0)
    assert _runs({"input_ids": torch.ones(2, 1), name: cache}, None) == [(4, 1)] * 2


def test_requests_in_one_batch(tmp_path: Any) -> None:
    """Their tokens stand in one row; borders come with them."""
    model = make_model(tmp_path, "Qwen3Moe")
    seen = watched(model)
    config = ContinuousBatchingConfig(
        page_size=32,
        num_blocks=16,
        max_batch_tokens=64,
        use_cuda_graph=False,
        use_async_batching=False,
        auto_switch_to_flash=False,
    )
    prompts = [[5, 6, 7], [8, 9, 10, 11]]
    model.generate_batch(
        inputs=prompts,
        generation_config=GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1),
        continuous_batching_config=config,
        progress_bar=False,
    )
    followed: dict[int, list[tuple[int, int]]] = {}
    for segments in seen:
        for sequence, position, length in segments:
            followed.setdefault(sequence, []).append((position, length))
    assert sorted(followed.values()) == [
        [(0, 3), (3, 1), (4, 1), (5, 1)],
        [(0, 4), (4, 1), (5, 1), (6, 1)],
    ]
