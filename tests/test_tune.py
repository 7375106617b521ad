"""`miractl tune`: what is tried and said with a measure of the test's, and one search for real."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from miractl.cli import serve
from miractl.errors import MiractlError
from miractl.plan import tuning
from miractl.profiles import load_profile
from miractl.runtime import trial
from miractl.runtime.engine import Engine, EngineOptions
from miractl.runtime.trial import Measured
from miractl.server.planned import plan_to_serve
from tests.runtime.models import make_model
from tests.server.tiny import tiny_tokenizer

Run = Callable[..., Result]
Rate = Callable[[int, int, int], float]  # of sets, staged, threads


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """`measured(rate)`: runs take no time and give `rate(sets, staged, threads)`."""
    # Which numbers of threads are tried is no matter of the machine that the tests run on.
    monkeypatch.setattr("miractl.probe.cpu._physical", lambda *_: 2)
    monkeypatch.setattr("miractl.probe.cpu.cpu_quota", lambda _: "max")

    def use(rate: Rate, **changes: Any) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def run(options: dict[str, Any], prompts: Sequence[str], passages: int) -> Measured:
            asked.append(options)
            values = options["parameters"]
            staged = values["max_staged_experts"] if values["prefetch"] else 0
            layout = {"sets": options["sets"] or 1, "staged": staged}
            layout["threads"] = options["threads"] or 1
            sizes = {"layers": 6, "experts": 192, "top_k": 4, "slots": 48}
            facts = {**sizes, **layout, "device": "cpu", **changes}
            return Measured(rate(**layout), passages * 0.5, facts)

        monkeypatch.setattr(trial, "run", run)
        return asked

    return use


def faster(sets: int, staged: int, threads: int) -> float:
    return 40.0 + 5 * (sets == 3) + 3 * (staged == 2)


def test_what_is_faster_is_written_and_can_be_served(measured: Any, miractl: Run) -> None:
    asked = measured(faster)
    found = miractl("tune", "--expert-memory", "25%", "--set", "cache_threshold=0.4")
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[0].split() == ["SETS", "WAYS", "STAGED", "THREADS", "TOKENS/S", "SPREAD", "ROUND"]
    assert lines[1].split()[:6] == ["3", "15", "2", "1", "48", "±0.0"]
    assert sum(line.endswith("today") for line in lines) == 1
    assert "fastest: 3 sets x 15 ways, 2 staged, 1 thread: 48 tokens/s, +20.0 %" in lines[-1]
    assert "round 1, 1 of " in found.stderr
    assert "miractl serve --profile ./tuned.yaml --expert-memory 25%" in found.stderr
    assert {options["expert_memory"] for options in asked} == {f"{48 * 122880}B"}
    profile = load_profile("tuned.yaml")
    assert profile.values == {
        "cache_threshold": 0.4,
        "prefetch": True,
        "max_staged_experts": 2,
        "sets": 3,
        "threads": 1,
    }
    assert "+20.0 % over profile default" in profile.sources["sets"]
    assert profile.sources["cache_threshold"] == "the command line"
    assert "48 of 192 experts" in profile.description
    assert miractl("profiles", "check", "tuned.yaml").exit_code == 0


def test_as_json(measured: Any, miractl: Run) -> None:
    measured(faster)
    found = json.loads(miractl("tune", "-o", "mine.yaml", "--json").stdout)
    assert found["schema"] == "miractl.tune/1"
    assert found["best"] == {"sets": 3, "staged": 2, "threads": 1}
    assert found["today"] == {"sets": 1, "staged": 4, "threads": 1}
    assert found["worth_it"] is True
    assert found["profile"] == "mine.yaml"
    assert {trial["round"] for trial in found["trials"]} == {1, 2, 3, 4, 5}


def test_without_a_gain_there_is_no_profile_unless_asked(measured: Any, miractl: Run) -> None:
    measured(lambda sets, staged, threads: 40.0)
    found = miractl("tune", "--profile", "a10")
    assert found.exit_code == 0
    assert "today's settings are the fastest that were found: 40 tokens/s" in found.stdout
    assert not Path("tuned.yaml").exists()
    assert "no profile written" in found.stderr
    miractl("tune", "--profile", "a10", "-o", "mine.yaml")
    profile = load_profile("./mine.yaml")
    assert (profile.values["sets"], profile.values["max_staged_experts"]) == (1, 3)
    assert "nothing beat profile a10" in profile.sources["sets"]


def test_interrupted_says_the_best_so_far(measured: Any, miractl: Run) -> None:
    left = iter(range(8))

    def rate(sets: int, staged: int, threads: int) -> float:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return 10.0 * sets

    measured(rate)
    found = miractl("tune")
    assert (found.exit_code, found.stdout) == (130, "")
    assert "best so far" in found.stderr
    assert (
        "3 sets x 15 ways, 4 staged, 1 thread: 30 tokens/s" in found.stderr.strip().splitlines()[-1]
    )
    assert not Path("tuned.yaml").exists()


def test_interrupted_at_once(measured: Any, miractl: Run) -> None:
    left = iter(range(2))

    def rate(sets: int, staged: int, threads: int) -> float:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return 1.0

    measured(rate)
    found = miractl("tune")
    assert found.exit_code == 130
    assert found.stderr.strip().splitlines()[-1] == "interrupted before anything was compared"


def test_where_all_experts_fit_only_threads_are_tuned(
    measured: Any, miractl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(lambda sets, staged, threads: 10.0 * threads, slots=192, sets=6, staged=0)
    monkeypatch.setattr("miractl.probe.cpu._physical", lambda *_: 4)
    monkeypatch.setattr("miractl.probe.cpu.cpu_quota", lambda _: "max")
    found = miractl("tune", "--expert-memory", "100%")
    assert "all 192 experts fit: only the threads are tuned" in found.stderr
    assert found.stdout.splitlines()[0].split()[0] == "THREADS"
    assert load_profile("tuned.yaml").values == {"threads": 4}
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    found = miractl("tune", "--expert-memory", "100%", "-o", "other.yaml")
    assert found.exit_code == 1
    assert "error: all 192 experts of miractl-demo fit, so only the threads" in found.stderr
    assert not Path("other.yaml").exists()


def test_slots_that_leave_no_choice(measured: Any, miractl: Run) -> None:
    measured(faster, slots=4, staged=0)
    found = miractl("tune", "--expert-memory", "4%", "--threads", "1", "--no-prefetch")
    assert found.exit_code == 1
    assert "error: 4 slots leave no choice of sets and staging" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--quick", "--minutes", "3"), "--quick and --minutes both say how long"),
        (("-o", "none/t.yaml"), "there is no folder none"),
        (("-o", "t.json"), "'t.json' does not end in .yaml"),
        (("--prompts", "none.txt"), "prompts none.txt: No such file"),
        (("--prompts", "blank.txt"), "prompts blank.txt: there is no text in it"),
        (("--expert-memory", "lots"), "expert memory"),
        (("--sets", "7"), "7 sets are more than the 6 layers with experts"),
        (("--sets", "0"), "--sets: got '0' but expected a whole number from 1 to 1024"),
        (("no-model",), "no folder 'no-model'"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], words: str, measured: Any, miractl: Run) -> None:
    asked = measured(faster)
    Path("blank.txt").write_text("\n \n\n", encoding="utf-8")
    found = miractl("tune", *arguments)
    assert found.exit_code == 2, found.output
    assert words in found.stderr
    assert asked == []


def test_a_file_that_nobody_named_is_not_written_over(measured: Any, miractl: Run) -> None:
    asked = measured(faster)
    Path("tuned.yaml").write_text("description: mine\n", encoding="utf-8")
    found = miractl("tune")
    assert (found.exit_code, asked) == (2, [])
    assert "tuned.yaml is there already" in found.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    make_model(folder, "Qwen3Moe", vocab_size=300)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_search_for_real(model: Path, miractl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEAST_SECONDS", "MOST_SECONDS"):
        monkeypatch.setattr(tuning, name, 0.001)
    monkeypatch.setattr(tuning, "LAST_REPEATS", 1)
    monkeypatch.setattr(tuning, "LEAST_TRIED", 2)
    arguments = ("--expert-memory", "50%", "--minutes", "0.1", "-o", "t.yaml", "--json")
    found = json.loads(miractl("tune", str(model), *arguments).stdout)
    assert found["shape"] == {
        "layers": 3,
        "experts": 24,
        "top_k": 2,
        "slots": 12,
        "bets": found["shape"]["bets"],
    }
    assert found["today"]["sets"] == 1
    assert all(rate > 0 for trial in found["trials"] for rate in trial["tokens_per_second"])
    assert miractl("profiles", "check", "t.yaml").exit_code == 0


def test_errors_of_a_run_are_told(model: Path) -> None:
    options = {
        "model_path": model,
        "model_id": "small",
        "parameters": load_profile("default").values,
    }
    with pytest.raises(MiractlError, match="one layer needs its top 2 at once") as caught:
        trial.run({**options, "expert_memory": "1B"}, ["text"], 1)
    assert caught.value.hint is not None


def test_serve_runs_with_what_the_profile_says(
    model: Path, miractl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "parameters:\n  max_staged_experts: 1\nruntime:\n  sets: 2  # why\n  threads: 2\n"
    Path("tuned.yaml").write_text(text, encoding="utf-8")
    asked: list[Any] = []
    monkeypatch.setattr(serve, "_serve", lambda *given: asked.extend(given))
    arguments = ("serve", str(model), "--profile", "./tuned.yaml", "--expert-memory", "50%")
    assert miractl(*arguments).exit_code == 0
    _, options, request, *_ = asked
    plan = plan_to_serve(options["model_path"], request, "cpu", lambda _: None)
    assert plan is not None
    assert plan.require().ways == (6, 5)
    before = torch.get_num_threads()
    engine = Engine.load(EngineOptions(**options, slots=plan.require(), with_tokenizer=False))
    snapshot = engine.snapshot()
    engine.close()
    torch.set_num_threads(before)
    assert (snapshot.cache.sets, snapshot.cache.ways, snapshot.model.threads) == (2, 5, 2)
    assert snapshot.prefetch.staged_limit == 1


@pytest.mark.parametrize("policy", ["learned", "lru", "heat"])
@pytest.mark.parametrize("sets", [1, 2, 3])
def test_sets_change_no_output(model: Path, sets: int, policy: str, kernels: None) -> None:
    values = load_profile("default").values
    options = EngineOptions(
        *(model, "small", values), device="cpu", expert_memory="50%", threads=1, policy=policy,
        with_tokenizer=False,
    )  # fmt: skip
    prompt = torch.arange(1, 40)[None]
    outputs = []
    for one in (options, replace(options, sets=sets)):
        engine = Engine.load(one)
        with torch.no_grad():
            outputs.append(engine.model(input_ids=prompt).logits)
        residency = engine.cache.residency
        engine.close()
    assert len(residency.ways) == sets
    torch.testing.assert_close(*outputs)
