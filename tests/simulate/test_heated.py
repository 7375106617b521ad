"""Heat of a recording: scores at its end, activations, and nothing that only a cache knows."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from miractl.policy.heat import HeatTable
from miractl.simulate.driving import Clock
from miractl.simulate.heated import heated
from miractl.telemetry.trace import Trace

IDS = np.array([[[0, 1]], [[0, 2]], [[0, 3]]])  # three tokens, one layer


def test_heat_goes_by_the_recorded_times() -> None:
    steps, seconds = np.array([0, 0, 1]), np.array([[0.0], [0.35]])
    trace = Trace("t", IDS, experts=5, layer_indices=(7,), steps=steps, gate_seconds=seconds)
    clock = Clock()
    heat = HeatTable(1, 5, 2, clock=clock)
    heat.activate(0, np.array([2, 1, 1, 0, 0]), 2)  # a prompt of two tokens
    clock.now = 0.35
    heat.activate(0, np.array([1, 0, 0, 1, 0]), 1)
    table = heated(trace, 0.0, 0.05)
    assert [row.heat for row in table.rows] == heat.scores(0).tolist()
    assert [row.activations for row in table.rows] == [3, 1, 1, 1, 0]
    assert {(row.layer, row.resident, row.hits, row.prefetched) for row in table.rows} == {
        (7, None, None, None)
    }


def test_without_times_it_is_a_step_a_token() -> None:
    table = heated(Trace("t", IDS), 0.0, 0.1)
    scores = [0.1 * 0.95**2 + 0.1 * 0.95 + 0.1, 0.1 * 0.95**2, 0.1 * 0.95, 0.1]
    assert [row.heat for row in table.rows] == pytest.approx(scores)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    np.savez(tmp_path / "t.npz", topk_ids=IDS, meta=json.dumps({"model": "m", "experts": 5}))
    return str(tmp_path / "t.npz")


def test_export(trace: str, miractl: Callable[..., Result], tmp_path: Path) -> None:
    target = tmp_path / "heat.csv"
    result = miractl("heat", "export", "--from", trace, "-o", str(target))
    assert result.exit_code == 0
    assert f"{trace} has no times: heat takes a step every 50 ms" in result.stderr
    rows = list(csv.DictReader(io.StringIO(target.read_text())))
    assert [row["activations"] for row in rows] == ["3", "1", "1", "1", "0"]
    assert {row[name] for row in rows for name in ("resident", "hits", "misses")} == {""}
    page = tmp_path / "heat.html"
    assert miractl("heat", "export", "--from", trace, "-o", str(page)).exit_code == 0
    assert "heat 0.30, 3 tokens" in page.read_text()


def test_cold(trace: str, miractl: Callable[..., Result]) -> None:
    facts = json.loads(miractl("heat", "cold", "--from", trace, "--json").stdout)
    assert (facts["model"], facts["never_used"], facts["layers"][0]["experts"]) == ("m", 1, [4])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--from", "absent.npz"), "absent.npz"),
        (("--from", "TRACE", "--url", "http://127.0.0.1:9"), "--from and --url say two sources"),
    ],
)
def test_refusals(
    words: tuple[str, ...], message: str, trace: str, miractl: Callable[..., Result]
) -> None:
    result = miractl("heat", "cold", *(trace if word == "TRACE" else word for word in words))
    assert result.exit_code == 2
    assert message in result.stderr
