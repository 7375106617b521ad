"""`miractl replay`: tables, JSON, CSV, a picture, and what is wrong in one line."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from tests.simulate.conftest import random_routing

pytestmark = pytest.mark.usefixtures("kernels")
Miractl = Callable[..., Result]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    routing = random_routing(7, 120, 3, 16, 2)
    meta = {"model": "some/model", "experts": 16, "layer_indices": [1, 2, 5]}
    path = tmp_path / "t.npz"
    np.savez(
        path,
        topk_ids=routing.ids.astype(np.uint8),
        topk_probs=routing.probabilities,
        seq_lens=np.array([100, 20]),
        meta=json.dumps(meta),
    )
    return str(path)


def test_without_a_trace_it_is_the_demo_models(miractl: Miractl) -> None:
    result = miractl("replay", "--slots", "25%", "--policy", "lru,learned", "--json")
    (trace,) = json.loads(result.stdout)["traces"]
    assert (trace["model"], trace["layers"], trace["experts"]) == ("miractl-demo", 6, 32)
    rates = {p["policy"]: p["hit_rate"] for p in trace["runs"][0]["policies"]}
    assert rates["lru"] + 0.05 < rates["learned"] < rates["optimum"]


def test_the_demo_models_trace_can_be_played_on_a_card(miractl: Miractl) -> None:
    options = ("--slots", "25%", "--policy", "lru", "--json")
    (trace,) = json.loads(miractl("replay", "--profile", "a10", *options).stdout)["traces"]
    assert trace["link"]["expert_bytes"] == 122_880


def test_the_table(trace: str, miractl: Miractl) -> None:
    result = miractl("replay", trace, "--slots", "25%")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "t.npz · some/model"
    assert "120 tokens, 3 layers, 2 of 16 experts; a token asks for 6" in lines[1]
    assert lines[3] == "4 slots a layer, 12 in all, 25.0 %"
    names = [line.split()[0] for line in lines[5:11]]
    assert names == ["lru", "lfu", "heat", "learned", "belady", "optimum"]
    worst = next(line for line in lines if line.startswith("worst layers: "))
    assert {part.split()[0] for part in worst[14:].split(", ")} == {"1", "2", "5"}
    assert "slots a layer: of LRU's" in lines[-1]


def test_one_is_no_plural(trace: str, miractl: Miractl) -> None:
    lines = miractl("replay", trace, "--slots", "1").stdout.splitlines()
    assert lines[3].startswith("1 slot a layer, 3 in all")
    assert " 1 slot a layer: of LRU's" in lines[-1]


def test_json_says_the_same_and_more(trace: str, miractl: Miractl) -> None:
    options = ("--slots", "50%,2", "--policy", "learned-layer", "--json")
    link = ("--link", "10GB/s", "--expert-size", "10MB")
    facts = json.loads(miractl("replay", trace, trace, *options, *link).stdout)
    assert facts["schema"] == "miractl.replay/1"
    assert [one["token_cycle"] for one in facts["traces"]] == [6, 6]
    runs = facts["traces"][0]["runs"]
    assert [run["slots_per_layer"] for run in runs] == [2, 8]
    first = {row["policy"]: row for row in runs[0]["policies"]}
    assert list(first) == ["lru", "learned-layer", "optimum"]
    lru = first["lru"]
    assert lru["link_seconds_per_token"] == pytest.approx(lru["misses_per_token"] * 0.001)
    assert len(lru["layer_hit_rates"]) == 3


def test_a_link_tells_what_prefetches_bring(trace: str, miractl: Miractl) -> None:
    link = ("--link", "10GB/s", "--expert-size", "10MB", "--layer-time", "2ms")
    lines = miractl("replay", trace, "--slots", "4", *link).stdout.splitlines()
    assert "- an expert of 9.54 MiB takes 1 ms" in lines
    heads = [line for line in lines if line.startswith("POLICY")]
    assert heads[1].split()[:3] == ["POLICY", "HITS", "LATE"]
    assert lines[-1].startswith("Prefetches ")
    facts = json.loads(miractl("replay", trace, "--slots", "4", *link, "--json").stdout)
    one = facts["traces"][0]
    assert one["link"]["layer_seconds"] == 2e-3
    assert one["link"]["max_staged_experts"] == 4
    assert one["runs"][0]["prefetch_verdict"] == lines[-1]
    for row in one["runs"][0]["policies"]:
        assert row["hit_rate_with_prefetch"] >= row["hit_rate"]
        assert row["seconds_per_token"] <= 1.01 * row["seconds_per_token_without_prefetch"]


def test_csv_has_a_row_for_each(trace: str, miractl: Miractl) -> None:
    out = miractl("replay", trace, "--policy", "all", "--slots", "4", "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 15
    assert {row["slots_per_layer"] for row in rows} == {"4"}
    assert rows[0]["policy"] == "lru"
    assert rows[0]["link_seconds_per_token"] == rows[0]["seconds_per_token"] == ""


def test_the_picture(trace: str, tmp_path: Path, miractl: Miractl) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "hits.png"
    result = miractl("replay", trace, "-o", str(target))
    assert result.exit_code == 0
    small = target.stat().st_size
    link = ("--link", "10GB/s", "--expert-size", "10MB", "--slots", "2,4")
    assert miractl("replay", trace, "-o", str(target), *link).exit_code == 0
    assert target.stat().st_size > small  # a second diagram, of times
    assert target.read_bytes().startswith(b"\x89PNG")
    assert f"wrote {target}" in result.stderr
    failed = miractl("replay", trace, "-o", str(tmp_path / "none" / "hits.png"))
    assert failed.exit_code == 2
    assert "there is no folder" in failed.stderr
    link_to = tmp_path / "link.png"
    link_to.symlink_to(target)
    assert miractl("replay", trace, "-o", str(link_to), "--slots", "2").exit_code == 0
    assert link_to.is_symlink()
    assert miractl("replay", trace, trace, "-o", str(target)).exit_code == 2


def test_the_picture_overwrites_no_trace_and_no_device(
    trace: str, tmp_path: Path, miractl: Miractl
) -> None:
    before = Path(trace).read_bytes()
    same = tmp_path / "same.png"
    same.symlink_to(trace)
    for output, said in (
        (trace, "the picture is a PNG"),
        (str(same), "is the trace itself"),
        (str(tmp_path / "fifo"), "the picture is a PNG"),
        (str(tmp_path), "is a folder"),
    ):
        refused = miractl("replay", trace, "-o", output)
        assert (refused.exit_code, refused.stdout) == (2, ""), output
        assert said in refused.stderr
    assert Path(trace).read_bytes() == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policy", "lur"), "--policy: no policy 'lur'"),
        (("--slots", "17"), "--slots: 17 is not 1 to 16 a layer"),
        (("--slots", "0"), "--slots: 0 is not 1 to 16 a layer"),
        (("--slots", "much"), "--slots: 'much' is no share above 0% and no whole number"),
        (("--slots", "0%"), "a share like 25%, or a whole number"),
        (("--slots", "2.5"), "a share like 25%, or a whole number"),
        (("--csv", "--json"), "--csv and --json are two forms of the same"),
        (("--token-time", "0ms"), "--token-time: '0ms' is nothing"),
        (("--link", "10GB/s"), "t.npz does not say how large an expert is"),
        (("--expert-size", "10MB"), "--link is missing"),
        (("--link", "10GB", "--expert-size", "1MB"), "--link: '10GB' needs a unit"),
        (("--token-time", "5"), "--token-time: '5'"),
        (("--layer-time", "5ms"), "--layer-time needs a link"),
        (("--link", "0GB/s", "--expert-size", "1MB"), "--link: '0GB/s' is nothing"),
        (("--profile", "a11"), "no profile 'a11'"),
        (("--profile", "a10"), "some/model is none of Mixtral-8x7B, "),
    ],
)
def test_wrong_usage_is_one_line(
    trace: str, options: tuple[str, ...], said: str, miractl: Miractl
) -> None:
    result = miractl("replay", trace, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_a_trace_that_is_not_there(tmp_path: Path, miractl: Miractl) -> None:
    result = miractl("replay", str(tmp_path / "no.npz"))
    assert (result.exit_code, "No such file" in result.stderr) == (2, True)
