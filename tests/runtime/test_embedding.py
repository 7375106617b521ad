"""The embedding in its file: its rows, when it may stay there, and a file that changes."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from miractl.errors import MiractlError
from miractl.runtime.embedding import StoredEmbedding, stand_in
from miractl.runtime.engine import Engine
from miractl.runtime.files import TableRows
from miractl.runtime.loading import Checkpoint
from miractl.runtime.outline import read_outline
from tests.runtime.models import make_model, options


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ids", [[[5, 3, 5, 0]], [[7], [7]], [[7]], [[]]])
def test_rows_are_those_of_the_table(
    tmp_path: Path, stored: torch.dtype, ids: list[list[int]]
) -> None:
    model = make_model(tmp_path / "made", "Qwen3Moe").to(stored)
    model.save_pretrained(tmp_path / "model")
    engine = Engine.load(options(tmp_path / "model", "100%"))
    try:
        own = engine.model.get_input_embeddings()
        assert isinstance(own, StoredEmbedding)
        asked = torch.tensor(ids, dtype=torch.int64)
        table = model.get_input_embeddings().weight.detach().float()
        assert torch.equal(own(asked), torch.nn.functional.embedding(asked, table))
        assert own(asked).dtype == torch.float32
        with pytest.raises(IndexError, match=f"of {len(table)}"):
            own(torch.tensor([[1, len(table)]]))
    finally:
        engine.close()


@pytest.mark.parametrize("ids", [[[5, 3, 5, 0]], [[5]], [[0, 3]]])
def test_tokens_whose_rows_cannot_be_read_are_lost_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: list[list[int]]
) -> None:
    model = make_model(tmp_path, "Qwen3Moe")
    read = TableRows.__getitem__

    def fail_one(rows: TableRows, numbers: Sequence[int]) -> torch.Tensor:
        if 5 in numbers:
            raise MiractlError("cannot read row 5")
        return read(rows, numbers)

    monkeypatch.setattr(TableRows, "__getitem__", fail_one)
    engine = Engine.load(options(tmp_path, "100%"))
    try:
        own = engine.model.get_input_embeddings()
        engine.losses.are_taken = True
        asked = torch.tensor(ids)
        whole = torch.nn.functional.embedding(asked, model.get_input_embeddings().weight)
        assert torch.equal(own(asked), torch.where((asked == 5)[..., None], 0.0, whole))
        lost = [row for row, number in enumerate(ids[0]) if number == 5]
        assert engine.losses.take() == dict.fromkeys(lost, "cannot read row 5")
    finally:
        engine.close()


def test_scaled_embeddings_are_scaled(tmp_path: Path) -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3TextScaledWordEmbedding

    model = make_model(tmp_path, "Qwen3Moe")
    outline = read_outline(tmp_path)
    files = Checkpoint(tmp_path, outline)
    stored = files._others[outline.embedding]
    wide = model.config.hidden_size
    scaled = Gemma3TextScaledWordEmbedding(model.config.vocab_size, wide, 90, embed_scale=3.0)
    scaled.weight = torch.nn.Parameter(stand_in(stored, torch.float32))
    own = StoredEmbedding(scaled, files._files.rows(stored))
    for ids in (torch.tensor([[4, 90, 4]]), torch.tensor([[90]])):
        assert torch.equal(own(ids), 3 * model.get_input_embeddings()(ids))
    files._files.close()


@pytest.mark.parametrize(("tied", "kept"), [(True, False), (False, True)])
def test_what_a_head_is_made_of_is_loaded(tmp_path: Path, tied: bool, kept: bool) -> None:
    make_model(tmp_path, "Qwen3Moe", tie_word_embeddings=tied)
    engine = Engine.load(options(tmp_path, "100%"))
    assert isinstance(engine.model.get_input_embeddings(), StoredEmbedding) == kept
    engine.close()


def test_a_cut_file_fails_the_request_that_needs_it(tmp_path: Path) -> None:
    make_model(tmp_path, "Qwen3Moe")
    engine = Engine.load(options(tmp_path, "100%"))
    file = engine.model.get_input_embeddings()._rows._range.file
    os.truncate(file, 128)
    with pytest.raises(MiractlError, match=f"{file} now ends at byte 128"), torch.no_grad():
        engine.model(torch.tensor([[5, 6]]))
    engine.close()
