"""`miractl status`: four figures in words."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from miractl.telemetry.snapshot import Snapshot
from tests.telemetry.snapshots import BASE, changed, on_cuda

Serve = Callable[[dict[str, tuple[int, Any]]], str]
Run = Callable[..., Any]

SICK = changed(
    on_cuda(),
    cache={"hits": 500, "misses": 3500, "evictions": 3400, "late": 0},
    switch={"p95_seconds": 0.5},
    memory={"inactive_split_bytes": 400 * 2**20},
)
YOUNG = changed(BASE, cache={"lookups": 0, "hits": 0, "misses": 0}, switch={"count": 0})


@pytest.mark.parametrize(
    ("name", "snapshot"), [("healthy", BASE), ("sick", SICK), ("young", YOUNG)]
)
def test_words(
    serve: Serve, miractl: Run, golden: Callable[[str, str], None], name: str, snapshot: Any
) -> None:
    url = serve({"/v1/status": (200, snapshot.to_json())})
    result = miractl("status", "--url", url)
    assert (result.exit_code, result.stderr) == (0, "")
    golden(f"status-{name}.txt", result.stdout)


def test_json(serve: Serve, miractl: Run) -> None:
    url = serve({"/v1/status": (200, SICK.to_json())})
    result = miractl("status", "--url", url, "--json")
    facts = json.loads(result.stdout)
    assert (facts["schema"], facts["healthy"], facts["url"]) == ("miractl.health/1", False, url)
    assert [verdict["status"] for verdict in facts["verdicts"]] == ["warn", "ok", "warn", "warn"]
    assert Snapshot.from_json(facts["status"]) == SICK


def test_nobody_there_fails(miractl: Run) -> None:
    result = miractl("status", "--url", "http://127.0.0.1:9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no miractl server at http://127.0.0.1:9" in result.stderr
    assert "miractl serve" in result.stderr


def test_loading_fails_and_says_so(serve: Serve, miractl: Run) -> None:
    url = serve({"/v1/status": (503, {"status": "loading"})})
    result = miractl("status", "--url", url)
    assert result.exit_code == 1
    assert "still loading" in result.stderr


def test_wrong_address_is_usage(miractl: Run) -> None:
    assert miractl("status", "--url", "127.0.0.1:8000").exit_code == 2
