"""A recorded run decided once more: the runtime's own counts, whatever moved the experts."""

import dataclasses
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result

from miractl.errors import MiractlError, UsageError
from miractl.runtime import emulated, runner, source
from miractl.runtime.engine import Engine, EngineOptions
from miractl.runtime.packing import pack
from miractl.runtime.rerun import rerun, why_not
from miractl.runtime.ticket import Course
from miractl.telemetry.trace import Trace, read_trace
from tests.runtime.models import make_model, options

pytestmark = pytest.mark.usefixtures("kernels")
RECORD = 8192
SOME = "30%"  # of the experts have slots


class Time:
    """A clock that the link's sleep moves, and every look at it by chance: bets may be late."""

    def __init__(self) -> None:
        self.now, self._chance = 0.0, random.Random(0)

    def __call__(self) -> float:
        self.now += self._chance.expovariate(1e5)
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers of sixteen experts, and the same as int4 in records of 8 KiB."""
    folder = tmp_path_factory.mktemp("models")
    make_model(folder / "source", "Qwen3Moe", moe_intermediate_size=64, num_experts=16)
    pack(folder / "source", folder / "int4", "int4")
    return folder


@torch.no_grad()
def answer(engine: Engine, tokens: int = 16) -> None:
    """A text alone, then three side by side."""
    generator = torch.Generator().manual_seed(0)
    for count in (1, 3):
        prompt = torch.randint(1, 96, (count, 9), generator=generator)
        engine.model.generate(prompt, max_new_tokens=tokens, do_sample=False)


def recorded(asked: EngineOptions, engine: Engine) -> tuple[Trace, dict[str, int]]:
    """The trace of a few answers, and what the engine itself says of them."""
    answer(engine)
    facts = engine.snapshot()
    engine.close()
    assert asked.record_trace is not None
    counted = {
        **{name: getattr(facts.cache, name) for name in ("hits", "misses", "late", "on_host")},
        **{name: getattr(facts.cache, name) for name in ("copied", "waited", "bypassed")},
        **{name: getattr(facts.prefetch, name) for name in ("issued", "used", "wasted")},
        **{name: getattr(facts.prefetch, name) for name in ("cancelled", "wasted_bytes")},
    }
    return read_trace(asked.record_trace), counted


def agrees(trace: Trace, counted: dict[str, int]) -> None:
    found = rerun(trace)
    assert found == trace.counts
    assert {name: found[name] for name in counted} == counted


@pytest.mark.parametrize(
    ("policy", "mode"),
    [
        *(("learned", "lookahead"), ("learned", "markov"), ("heat", "learned")),
        *(("lru", "hybrid"), ("lru-shift", "lookahead"), ("heat-shift", "markov")),
    ],
)
@pytest.mark.parametrize("chunks", [1, 3])
def test_threads_and_a_disk(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    mode: str,
    chunks: int,
) -> None:
    if chunks > 1:
        monkeypatch.setattr(source, "DISK_CHUNK", 4096)
    base = options(folder / "source", SOME, prediction_mode=mode, prediction_horizon=2)
    asked = dataclasses.replace(base, policy=policy, record_trace=tmp_path / "t.npz")
    engine = Engine.load(asked)
    assert engine.cache.transfers.chunks == chunks
    reads, course = [], engine.source.course

    def slowly(*args: Any) -> Course:
        reads.append(1)
        inner = course(*args)
        while True:
            time.sleep(2e-4 / chunks)  # so that bets come too late, too
            try:
                yield next(inner)
            except StopIteration as end:
                return int(end.value)

    engine.source.course = slowly  # type: ignore[method-assign]
    trace, counted = recorded(asked, engine)
    assert len(reads) > 100
    agrees(trace, counted)


@pytest.mark.parametrize("mode", ["lookahead", "markov", "learned"])
@pytest.mark.parametrize("host", ["off", "auto"])
@pytest.mark.parametrize("chunks", [1, 8])
def test_an_emulated_link(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, host: str, chunks: int
) -> None:
    if chunks > 1:
        monkeypatch.setattr(emulated, "LINK_CHUNK", RECORD // chunks)
    base = options(folder / "int4", SOME, prediction_mode=mode)
    asked = dataclasses.replace(
        *(base,), emulate_link=4e3 * RECORD, host_compute=host, record_trace=tmp_path / "t.npz"
    )
    clock = Time()
    trace, counted = recorded(asked, Engine.load(asked, clock=clock, sleep=clock.sleep))
    assert counted["on_host" if host == "auto" else "issued"] > 0
    assert (counted["wasted_bytes"] < counted["wasted"] * RECORD) == (chunks > 1)
    agrees(trace, counted)


def test_a_prompt_in_parts_without_bets(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PART_BYTES", 4 * 2 * 32 * 4)  # four tokens
    base = options(folder / "source", SOME, prefetch=False)
    asked = dataclasses.replace(base, record_trace=tmp_path / "t.npz")
    trace, counted = recorded(asked, Engine.load(asked))
    assert counted["issued"] == 0
    agrees(trace, counted)


@pytest.fixture(scope="module")
def trace(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "t.npz"
    asked = dataclasses.replace(options(folder / "source", SOME), record_trace=path)
    recorded(asked, Engine.load(asked))
    return path


def test_the_command_shows_both(
    trace: Path, tmp_path: Path, miractl: Callable[..., Result]
) -> None:
    result = miractl("replay", str(trace), "--as-recorded")
    assert "As the server ran: learned, bets by lookahead" in result.stdout
    assert "They agree to the last one" in result.stdout
    result = miractl("replay", str(trace), "--as-recorded", "--json")
    found = json.loads(result.stdout)["traces"][0]["as_served"]
    assert found["agree"] is True
    assert found["replayed"] == found["server"]
    other = changed(trace, tmp_path, hits=0)
    assert "They do not agree" in miractl("replay", str(other), "--as-recorded").stdout


def changed(trace: Path, folder: Path, **counts: int) -> Path:
    """The trace of a server that says that it counted something else."""
    with np.load(trace) as data:
        arrays = dict(data)
    meta = json.loads(str(arrays["meta"]))
    meta["counts"] |= counts
    np.savez(folder / "t.npz", **arrays | {"meta": json.dumps(meta)})
    return folder / "t.npz"


def test_a_step_that_failed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dataclasses.replace(options(folder / "source", SOME), record_trace=tmp_path / "t.npz")
    engine = Engine.load(asked)
    answer(engine, 3)
    with monkeypatch.context() as patch:
        patch.setattr(engine.compute, "mix", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            answer(engine, 3)
    answer(engine, 3)
    engine.close()
    assert why_not(read_trace(tmp_path / "t.npz")) == (
        "not all of the run was recorded: a step failed"
    )


def test_a_step_that_is_under_way_at_the_end(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dataclasses.replace(options(folder / "source", SOME), record_trace=tmp_path / "t.npz")
    engine = Engine.load(asked)
    answer(engine, 3)
    monkeypatch.setattr(engine.compute, "mix", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        answer(engine, 3)
    engine.close()
    trace = read_trace(tmp_path / "t.npz")
    assert rerun(trace) == trace.counts


def test_tokens_that_are_nobodys(folder: Path, tmp_path: Path) -> None:
    asked = dataclasses.replace(options(folder / "source", SOME), record_trace=tmp_path / "t.npz")
    engine = Engine.load(asked)
    prompt = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 6]])
    with torch.no_grad():
        engine.model(prompt, attention_mask=(prompt > 0).long())
    engine.close()
    reason = why_not(read_trace(tmp_path / "t.npz"))
    assert reason is not None
    assert "whose some tokens were" in reason


def test_a_server_that_began_warm(folder: Path, tmp_path: Path) -> None:
    warm = tmp_path / "warm.npz"
    for turn in range(2):
        path = tmp_path / f"{turn}.npz"
        asked = dataclasses.replace(
            options(folder / "source", SOME), record_trace=path, warm_heat=warm
        )
        trace, _ = recorded(asked, Engine.load(asked))
        assert (why_not(trace) is None) == (turn == 0)
    with pytest.raises(UsageError, match="learned from earlier runs"):
        rerun(trace)


def test_other_decisions_are_one_line(trace: Path) -> None:
    found = read_trace(trace)
    assert found.tape is not None
    for tape, said in (
        (found.tape[: len(found.tape) // 2], "after .* other decisions than recorded"),
        (b"", "after 0 steps other decisions than recorded"),
        (b"nothing", "the tape is damaged"),
    ):
        with pytest.raises(MiractlError, match=said):
            rerun(dataclasses.replace(found, tape=tape))
    routed = dataclasses.replace(found, ids=(found.ids + 1) % 16)
    with pytest.raises(MiractlError, match="other decisions than recorded: SUBMIT of"):
        rerun(routed)


def test_an_older_recording_has_no_late_and_wasted(trace: Path) -> None:
    found = dataclasses.replace(read_trace(trace), tape=None)
    assert why_not(found) == "recorded without what decisions were told"
