"""The engine's brain: what it records is what it did, and what it learned it can start with."""

import dataclasses
import errno
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from miractl.errors import MiractlError, UsageError
from miractl.native import available
from miractl.policy.memory import read_memory, write_memory
from miractl.policy.prediction import TablePredictor
from miractl.runtime.arena import expert_nbytes
from miractl.runtime.brain import identity_of
from miractl.runtime.engine import Engine
from miractl.runtime.outline import read_outline
from miractl.simulate.driving import Slots, drive
from miractl.telemetry.trace import read_trace
from tests.runtime.models import make_model, options

POLICIES = ["lru", "heat", *(["learned"] if available() else [])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_model(path, "Qwen3Moe", num_experts=24, num_hidden_layers=4)
    return path


def load(folder: Path, slots: int, **changes: Any) -> Engine:
    outline = read_outline(folder)
    memory = f"{slots * expert_nbytes(outline.shapes, torch.float32)}B"
    base = options(folder, memory, prefetch=False, max_staged_experts=0)
    return Engine.load(dataclasses.replace(base, **changes))


@torch.no_grad()
def answer(engine: Engine, texts: int = 2, tokens: int = 24) -> None:
    """Some texts one after another, then two side by side."""
    generator = torch.Generator().manual_seed(0)
    for count in [1] * texts + [2]:
        prompt = torch.randint(1, 96, (count, 9 + texts), generator=generator)
        engine.model.generate(prompt, max_new_tokens=tokens, do_sample=False)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_recording_replayed_has_the_hits_of_the_run(
    folder: Path, tmp_path: Path, policy: str
) -> None:
    target = tmp_path / "t.npz"
    engine = load(folder, 33, policy=policy, record_trace=target)
    answer(engine)
    facts, plan = engine.snapshot(), engine.plan
    engine.close()
    trace = read_trace(target)
    assert trace.slots == (plan.slots, plan.ways)
    found = drive(trace, policy, Slots(*trace.slots), 0.05)
    assert (found.steps, found.tokens) == (facts.work.steps, facts.work.tokens)
    assert found.lookups.tolist() == [layer.lookups for layer in facts.layers]
    rate = found.hits.sum() / found.lookups.sum()
    assert abs(rate - facts.cache.hits / facts.cache.lookups) <= 0.001
    assert 0.2 < rate < 0.95
    assert trace.lengths == (34, 34, 34, 34)
    assert trace.expert_bytes == plan.expert_bytes


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_ends_the_recording_and_nothing_else(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = load(folder, 33, record_trace=tmp_path / "t.npz")
    answer(engine, texts=0, tokens=3)
    monkeypatch.setattr("miractl.telemetry.recorder.Recorder.add", full)
    with caplog.at_level(logging.ERROR):
        answer(engine, texts=0, tokens=5)
        engine.close()
    (line,) = caplog.messages
    assert line == f"cannot record to {tmp_path / 't.npz'} any more: No space left on device"
    assert len(read_trace(tmp_path / "t.npz").ids) > 0  # what was recorded before is kept


def test_a_place_where_nothing_can_be_recorded_is_told_before_loading(folder: Path) -> None:
    with pytest.raises(MiractlError, match="there is no folder"):
        load(folder, 33, record_trace=folder / "none" / "t.npz")
    with pytest.raises(MiractlError, match="is there already"):
        load(folder, 33, record_trace=folder / "config.json")


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_a_warm_start_knows_what_the_last_run_knew(
    folder: Path, tmp_path: Path, policy: str
) -> None:
    path = tmp_path / "warm.npz"
    first = load(folder, 33, policy=policy, warm_heat=path)
    answer(first)
    used = first.brain.activations.copy()
    tables = {name: table.copy() for name, table in first.brain.eviction.tables().items()}
    first.close()
    second = load(folder, 33, policy=policy, warm_heat=path)
    with np.load(path) as kept:
        np.testing.assert_array_equal(second.brain.heat._score, kept["heat"])  # as of the start
    for name, table in second.brain.eviction.tables().items():
        np.testing.assert_array_equal(table, tables[name], err_msg=name)
    answer(second)
    remembered = second.brain.remember()
    second.close()
    np.testing.assert_array_equal(remembered.activations, 2 * used)
    # Another policy keeps what this one learned.
    other = load(folder, 33, policy="lru", warm_heat=path)
    assert other.brain.remember().tables.keys() == tables.keys()
    other.close()


@pytest.mark.skipif(not available(), reason="bets need the library")
def test_bets_begin_with_what_the_last_run_knew(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "warm.npz"

    def start(mode: str) -> Engine:
        values = options(folder, None, prediction_mode=mode, prediction_horizon=1).parameters
        return load(folder, 33, warm_heat=path, parameters=values)

    first = start("markov")
    answer(first)
    first.close()
    kept = read_memory(path, identity_of(first.model, first.outline))
    assert kept is not None
    assert kept.guesses.keys() == {"markov.by_layer", "markov.by_token", "popularity"}
    second = start("markov")
    assert isinstance(second.predictor, TablePredictor)
    for name, table in second.predictor.tables().items():
        np.testing.assert_array_equal(table, kept.guesses[name], err_msg=name)
    second.close()
    start("lookahead").close()  # knows nothing, and keeps what others do
    other = read_memory(path, identity_of(first.model, first.outline))
    assert other is not None
    assert other.guesses.keys() == kept.guesses.keys()
    damaged = {**kept.guesses, "markov.by_token": np.zeros((1, 2))}
    write_memory(
        path,
        identity_of(first.model, first.outline),
        dataclasses.replace(kept, guesses=damaged),
    )
    with pytest.raises(UsageError, match=r"warm heat .*Got no table markov\.by_token"):
        start("markov")


def test_a_memory_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "warm.npz"
    load(folder, 33, warm_heat=path).close()
    make_model(tmp_path / "other", "Qwen3Moe", num_experts=24, num_hidden_layers=4, hidden_size=48)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="another model"):
        load(tmp_path / "other", 33, warm_heat=path)
    assert path.read_bytes() == before


def test_a_memory_that_cannot_be_kept_is_one_line(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = load(folder, 33, warm_heat=tmp_path / "gone" / "warm.npz")
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        engine.close()
    assert [message.partition(":")[0] for message in caplog.messages] == [
        f"cannot write {tmp_path / 'gone' / 'warm.npz'}"
    ]


def test_a_start_says_what_it_knows_and_an_end_what_it_keeps(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "warm.npz"
    with caplog.at_level(logging.INFO, "miractl.runtime.brain"):
        first = load(folder, 33, policy="lru", warm_heat=path)
        answer(first, texts=0, tokens=3)
        first.close()
        load(folder, 33, policy="lru", warm_heat=path).close()
    known = "heat and counts of 22 tokens"  # two prompts of 9, and 2 more of each
    told = [r.getMessage() for r in caplog.records if r.name == "miractl.runtime.brain"]
    assert told == [
        f"warm heat {path}: new, written at the end",
        f"warm heat {path}: written, {known}",
        f"warm heat {path}: {known}",
        f"warm heat {path}: written, {known}",
    ]


def test_static_names_the_memory_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"policy static goes by .* no .*none\.npz"):
        load(folder, 33, policy="static", warm_heat=tmp_path / "none.npz")


def test_static_keeps_what_an_earlier_run_used_most(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "warm.npz"
    first = load(folder, 33, policy="lru", warm_heat=path)
    answer(first)
    used = first.brain.activations
    first.close()
    second = load(folder, 33, policy="static", warm_heat=path)
    answer(second)
    rows, ways = second.expert_rows(), sum(second.plan.ways)
    second.close()
    resident = np.array([row.resident for row in rows]).reshape(used.shape)
    most = np.sort(used.reshape(-1))[-ways]
    assert (used[resident] >= most).all()
    assert resident.sum() == ways
    with pytest.raises(UsageError, match="an earlier run") as caught:
        load(folder, 33, policy="static")
    assert caught.value.exit_code == 2


@pytest.mark.skipif(not available(), reason="the library learns")
@pytest.mark.parametrize("policy", [None, "learned"])
def test_nothing_is_learned_where_all_have_slots_unless_it_is_kept(
    folder: Path, tmp_path: Path, policy: str | None
) -> None:
    kept = tmp_path / "heat"
    for slots, path, learns in [(96, None, False), (96, kept, True), (95, None, True)]:
        engine = load(folder, slots, policy=policy, warm_heat=path)
        answer(engine, texts=1, tokens=3)
        facts, brain = engine.snapshot(), engine.brain
        engine.close()
        assert bool(brain.remember().tables) is learns
        assert brain.activations.sum() == facts.work.tokens * 4 * engine.outline.top_k
