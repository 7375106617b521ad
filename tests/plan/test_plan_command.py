"""`miractl plan` as it is typed: golden pages, exit codes, JSON."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from miractl.plan import docs
from miractl.plan.catalog import CONFIGS

HW = Path(__file__).parent.parent / "fixtures" / "hw"
Miractl = Callable[..., Result]
Golden = Callable[[str, str], None]
RATES = ("--link", "25GB/s", "--host-rate", "40GB/s", "--disk", "3GB/s")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def use(name: str) -> None:
        monkeypatch.setenv("MIRACTL_FAKE_HW", str(HW / f"{name}.json"))

    return use


def folder(tmp_path: Path, name: str) -> Path:
    """A model of which there is only the config."""
    path = tmp_path / name
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIGS[name]))
    return path


@pytest.mark.parametrize(
    ("hardware", "model", "options"),
    [
        ("a10-x8-load", "Qwen3-30B-A3B", ("--profile", "a10", "--concurrency", "4")),
        ("rtx4090", "Mixtral-8x7B", ("--profile", "rtx4090", "--gpu-rate", "1008GB/s", *RATES)),
        ("no-gpu", "gpt-oss-20b", ("--host-rate", "9GB/s", "--disk", "500MB/s")),
    ],
)
def test_pages(
    hardware: str,
    model: str,
    options: tuple[str, ...],
    tmp_path: Path,
    machine: Callable[[str], None],
    miractl: Miractl,
    golden: Golden,
) -> None:
    machine(hardware)
    result = miractl("plan", str(folder(tmp_path, model)), *options)
    assert (result.exit_code, result.stderr) == (0, "")
    golden(f"plan/{hardware}.txt", result.stdout)


def test_the_worked_example(
    machine: Callable[[str], None], miractl: Miractl, golden: Golden
) -> None:
    machine("no-gpu")
    sizes = ("--gpu-memory", "24GB", "--baseline", "8.2GB", "--expert-size", "1.1GB")
    result = miractl("plan", *sizes, "--profile", "a10")
    assert result.exit_code == 0
    for name, count in (
        ("memory, without the factor", 14),
        ("memory, with the factor 1.8", 7),
        ("the cap of profile a10", 3),
    ):
        row = next(text for text in result.stdout.splitlines() if name in text)
        assert f" {count}  " in row
    golden("plan/worked-example.txt", result.stdout)
    facts = json.loads(miractl("plan", *sizes, "--profile", "a10", "--json").stdout)
    assert [bound["experts"] for bound in facts["staging"]["bounds"]] == [14, 7, 3]


def test_a_refusal_is_exit_code_1_with_the_ledger(
    machine: Callable[[str], None], miractl: Miractl, golden: Golden
) -> None:
    machine("container-limited")
    result = miractl("plan", "Qwen3-30B-A3B")
    assert result.exit_code == 1
    golden("plan/container-limited.txt", result.stdout)
    as_json = miractl("plan", "Qwen3-30B-A3B", "--json")
    assert as_json.exit_code == 1
    facts = json.loads(as_json.stdout)
    assert (facts["runs"], facts["refusal"]["line"]) == (False, "weights")


def test_json_is_complete(tmp_path: Path, machine: Callable[[str], None], miractl: Miractl) -> None:
    machine("a10-x8-load")
    result = miractl("plan", str(folder(tmp_path, "gpt-oss-20b")), "--json")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["schema"] == "miractl.plan/1"
    assert set(facts) == {
        *("schema", "name", "runs", "refusal", "model", "machine", "request", "ledgers", "slots"),
        "kv_cache",
        *("staging", "hit_rate", "forecast", "max_concurrency", "warnings", "change_first"),
    }
    assert facts["machine"]["gpu_memory"]["origin"] == "measured"
    assert (
        facts["slots"]["expert_memory"] == facts["slots"]["slots"] * facts["slots"]["expert_bytes"]
    )
    assert facts["hit_rate"]["assumed"] is True


def test_parameters_come_from_all_layers(
    machine: Callable[[str], None], miractl: Miractl, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("a10-x16")

    def binding(*options: str) -> str:
        facts = json.loads(miractl("plan", "Mixtral-8x7B", "--json", *options).stdout)
        found: str = facts["staging"]["binding"]
        return found

    assert binding("--profile", "a10") == "the cap of profile a10"
    assert binding("--max-staged-experts", "1") == "the cap of the command line"
    assert binding("--no-prefetch") == "prefetch being off"
    monkeypatch.setenv("MIRACTL_MAX_STAGED_EXPERTS", "2")
    assert binding("--profile", "a10") == "the cap of env MIRACTL_MAX_STAGED_EXPERTS"


@pytest.mark.parametrize(
    ("options", "staged", "said"),
    [
        ((), 1, "gives x8: 1 expert is staged at a time (--max-staged-experts for more)"),
        (("--profile", "a10"), 1, "gives x8: 1 expert is staged at a time"),
        (("--max-staged-experts", "3"), 3, "gives x8: stage little, --max-staged-experts 1"),
        (("--max-staged-experts", "1"), 1, "the card can do x16, its slot gives x8"),
        (("--no-prefetch",), 0, "the card can do x16, its slot gives x8"),
    ],
)
def test_a_narrow_slot_stages_one_unless_the_user_says_more(
    options: tuple[str, ...],
    staged: int,
    said: str,
    machine: Callable[[str], None],
    miractl: Miractl,
) -> None:
    machine("a10-x8-load")
    facts = json.loads(miractl("plan", "Qwen3-30B-A3B", "--json", *options).stdout)
    assert facts["staging"]["max_staged_experts"] == facts["slots"]["staging_limit"] == staged
    assert [text for text in facts["warnings"] if said in text]
    machine("a10-x16")
    wide = json.loads(miractl("plan", "Qwen3-30B-A3B", "--json").stdout)
    assert wide["staging"]["max_staged_experts"] == 4


def test_kv_memory_bounds_the_cache(machine: Callable[[str], None], miractl: Miractl) -> None:
    machine("a10-x16")

    def cache(*options: str) -> tuple[int, int]:
        facts = json.loads(miractl("plan", "Qwen3-30B-A3B", "--json", *options).stdout)
        return facts["kv_cache"]["bytes"], facts["kv_cache"]["full_requests"]

    assert cache("--kv-memory", "8GiB") == (cache("--concurrency", "8", "--kv-memory", "1TiB"))
    usual, more = cache(), cache("--kv-memory", "4GiB")
    assert usual[0] <= 2**30 < more[0] <= 2**32
    assert usual[1] < more[1] < 8


def test_the_demo_model_is_planned_as_serve_runs_it(
    machine: Callable[[str], None], miractl: Miractl, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("no-gpu")

    def slots(*options: str) -> tuple[int, int]:
        facts = json.loads(miractl("plan", "--json", *options).stdout)
        return facts["slots"]["slots"], facts["request"]["concurrency"]

    assert slots() == (76, 8)
    assert "its experts get 40% of their size" in miractl("plan").stderr
    monkeypatch.setenv("MIRACTL_MAX_CONCURRENCY", "3")
    monkeypatch.setenv("MIRACTL_EXPERT_MEMORY", "100%")
    assert slots() == (192, 3)
    assert slots("--expert-memory", "50%", "--concurrency", "2") == (96, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--kv-memory", "1"), "kv memory (option): '1' needs a unit"),
        (("--gpu-memory", "24"), "--gpu-memory: '24' needs a unit"),
        (("--link", "25GB"), "--link: '25GB' needs a unit; write it like 15.8GB/s"),
        (("--context", "40000"), "the model ends at 32,768"),
        (("--expert-size", "1GB"), "are for planning without a MODEL"),
        (("--trace", "nowhere.npz"), "trace nowhere.npz: No such file or directory"),
    ],
)
def test_wrong_usage_is_one_line(
    options: tuple[str, ...], said: str, machine: Callable[[str], None], miractl: Miractl
) -> None:
    machine("no-gpu")
    result = miractl("plan", "Mixtral-8x7B", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_unknown_models_are_not_fetched(miractl: Miractl) -> None:
    result = miractl("plan", "someone/some-model")
    assert "nothing is fetched by itself" in result.stderr
    assert miractl("plan", "Qwen/Qwen3-30B-A3B", "--gpu-memory", "24GB").exit_code == 0


def test_the_page_of_plans_is_current() -> None:
    written = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    assert written == docs.page(), "python -m miractl.plan.docs > docs/planning.md"


def test_the_page_shows_what_the_command_prints(
    machine: Callable[[str], None], miractl: Miractl, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine("no-gpu")
    monkeypatch.setenv("COLUMNS", "100")
    page = docs.page()
    command = page.partition("This is what\n`miractl ")[2].partition("` prints")[0]
    shown = page.partition("```text\n")[2].partition("\n\nruns: ")[0]
    assert shown in miractl(*command.split()).stdout


def test_a_trace_replaces_the_assumption(
    tmp_path: Path, machine: Callable[[str], None], miractl: Miractl
) -> None:
    machine("a10-x16")
    path = tmp_path / "t.npz"
    ids = np.random.default_rng(0).integers(0, 32, (40, 24, 4), dtype=np.int16)
    np.savez(path, topk_ids=ids)
    options = ("--expert-memory", "25%", "--trace", str(path), "--json")
    facts = json.loads(miractl("plan", "gpt-oss-20b", *options).stdout)
    assert facts["hit_rate"]["assumed"] is False
    assert facts["hit_rate"]["origin"] == "replay of 40 tokens of t.npz, LRU to optimum"
    assert 0.1 < facts["hit_rate"]["low"] < facts["hit_rate"]["high"] < 0.6
