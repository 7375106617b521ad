"""A real engine behind a real server whose reads fail: requests that need them do, no others."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from miractl.errors import MiractlError
from miractl.plan.kv import PAGE
from miractl.policy.keys import ExpertKey
from miractl.runtime.engine import Engine
from miractl.runtime.files import TableRows
from miractl.runtime.movers import DiskMover
from miractl.runtime.ticket import Course
from miractl.server.service import decoder
from tests.runtime.models import make_model, options
from tests.server.conftest import Running, serving
from tests.server.tiny import tiny_tokenizer

TEXT = "/v1/completions"
TOKENIZER = tiny_tokenizer()
SHORT, TOKENS = "a", 12
ODD = "?"  # in no answer


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> set[ExpertKey]:
    """Experts that the disk cannot read."""
    experts: set[ExpertKey] = set()
    move = DiskMover.move

    def fail_some(mover: DiskMover, key: ExpertKey, slot: int, chunks: int) -> Course:
        if key in experts:
            raise MiractlError(f"cannot read expert {key.expert} of layer {key.layer}")
        return move(mover, key, slot, chunks)

    monkeypatch.setattr(DiskMover, "move", fail_some)
    return experts


@pytest.fixture
def stock(tmp_path: Path) -> Any:
    """The model itself, which is also in a folder."""
    sizes = {"vocab_size": len(TOKENIZER), "max_position_embeddings": 512, "num_experts": 16}
    return make_model(tmp_path, "Qwen3Moe", **sizes, initializer_range=0.3)


@pytest.fixture
def served(tmp_path: Path, stock: Any, broken: set[ExpertKey]) -> Iterator[Running]:
    """Slots for two experts of a layer: all but these are read each time."""
    engine = Engine.load(options(tmp_path, "15%", prefetch=False))
    engine._tokenizer = TOKENIZER
    with serving(engine) as running:
        yield running


def long(number: int) -> str:
    """A prompt of more than a page of the key-value cache."""
    return f"{number} to be or not to be " * 40


@torch.no_grad()
def expected(stock: Any, prompt: str) -> str:
    """What the stock model says."""
    ids = torch.tensor([TOKENIZER(prompt)["input_ids"]])
    assert ids.shape[1] // PAGE == (0 if prompt == SHORT else 1)
    told = stock.generate(ids, max_new_tokens=TOKENS, do_sample=False)
    return decoder(TOKENIZER)(told[0, ids.shape[1] :].tolist())


def needs(served: Running, prompt: str) -> set[ExpertKey]:
    """Experts that compute a prompt and its continuation."""
    before = {(row.layer, row.expert): row.activations for row in served.engine.expert_rows()}
    served.complete(prompt)
    return {
        ExpertKey(row.layer, row.expert)
        for row in served.engine.expert_rows()
        if row.activations > before[row.layer, row.expert]
    }


def ask(served: Running, prompts: Sequence[str]) -> list[httpx.Response]:
    """All at once."""
    greedy = {"max_tokens": TOKENS, "temperature": 0}
    with ThreadPoolExecutor(len(prompts)) as threads:
        asked = [threads.submit(served.post, TEXT, {"prompt": p, **greedy}) for p in prompts]
        return [each.result() for each in asked]


def test_only_requests_that_need_what_cannot_be_read_fail(
    served: Running, stock: Any, broken: set[ExpertKey], caplog: pytest.LogCaptureFixture
) -> None:
    short = expected(stock, SHORT)
    others = needs(served, long(0)) - needs(served, SHORT)
    assert others
    for number in range(1, 4):  # new texts, of which no keys and values are there
        broken |= others
        prompts = (long(number), SHORT) * 2
        for prompt, answer in zip(prompts, ask(served, prompts), strict=True):
            if prompt == SHORT:
                assert answer.json()["choices"][0]["text"] == short
            else:
                assert answer.status_code == 500
                assert "cannot read expert" in answer.json()["error"]["message"]
        broken.clear()  # what could not be brought is resident for nobody, nor anybody's prefix
        assert served.complete(long(number)) == expected(stock, long(number))
    assert "a new one runs" not in caplog.text
    assert served.engine.losses.take() == {}


def test_only_requests_with_tokens_that_cannot_be_read_fail(
    served: Running, stock: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = TableRows.__getitem__
    (unreadable,) = TOKENIZER(ODD)["input_ids"]

    def fail_one(rows: TableRows, numbers: Sequence[int]) -> torch.Tensor:
        if unreadable in numbers:
            raise MiractlError(f"cannot read row {unreadable}")
        return read(rows, numbers)

    monkeypatch.setattr(TableRows, "__getitem__", fail_one)
    prompts = (long(1) + ODD, SHORT) * 2
    for prompt, answer in zip(prompts, ask(served, prompts), strict=True):
        if prompt == SHORT:
            assert answer.json()["choices"][0]["text"] == expected(stock, SHORT)
        else:
            assert answer.status_code == 500
            assert "cannot read row" in answer.json()["error"]["message"]
    assert "a new one runs" not in caplog.text
    assert served.engine.losses.take() == {}
