"""`miractl bench serve` against a real server: what is counted, and what failures leave."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from miractl.telemetry.client import Client
from miractl.telemetry.traffic import Answered, Asking
from tests.server.conftest import Running

Run = Callable[..., Result]
LONG = "to be or not to be " * 50  # more than the window


def prompts(folder: Path, *texts: str) -> Path:
    path = folder / "prompts.txt"
    path.write_text("\n\n".join(texts), encoding="utf-8")
    return path


def bench(miractl: Run, url: str, file: Path, *more: str) -> Result:
    numbers = ("--requests", "5", "--concurrency", "2", "--tokens", "4")
    return miractl("bench", "serve", "--url", url, "--prompts", str(file), *numbers, *more)


def test_what_is_counted(server: Running, miractl: Run, tmp_path: Path) -> None:
    file = prompts(tmp_path, "the cat", "to be")
    result = bench(miractl, server.url + "/v1", file, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["schema"], found["model"]) == ("miractl.bench.serve/1", "tiny")
    assert (found["answered"], found["failed"], found["first_failure"]) == (5, 0, None)
    assert found["tokens"] == 5 * 4
    assert found["tokens_per_second"] == pytest.approx(20 / found["seconds"])
    medians = []
    for name in ("between_tokens_seconds", "first_token_seconds", "answer_seconds"):
        times = found[name]
        assert list(times) == ["median", "p90", "p99", "highest"]
        assert list(times.values()) == sorted(times.values())
        medians.append(times["median"])
    assert medians[0] > 0
    assert medians[1] <= medians[2]
    assert found["hit_rate"] is None  # of an engine whose counters stand still


def test_an_answer_of_one_token_has_no_time_between(
    server: Running, miractl: Run, tmp_path: Path
) -> None:
    assert Answered(1.0, 3.0, 3.5, 9, 5).between == 0.5
    result = bench(miractl, server.url, prompts(tmp_path, "the"), "--tokens", "1")
    lines = result.stdout.splitlines()
    assert lines[0] == f"tiny at {server.url}: 5 requests, 2 at a time, 1 token each at most"
    assert lines[1].split() == ["TIME", "OF", "MEDIAN", "P90", "P99", "HIGHEST"]
    assert lines[3].split() == ["each", "token", "after", "it", *["n/a"] * 4]
    assert result.stderr == ""


def test_requests_that_fail_are_said(server: Running, miractl: Run, tmp_path: Path) -> None:
    result = bench(miractl, server.url, prompts(tmp_path, "the", LONG), "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["answered"], found["failed"], found["tokens"]) == (2, 3, 8)
    assert "leave room for an answer" in found["first_failure"]
    result = bench(miractl, server.url, prompts(tmp_path, "the", LONG))
    assert result.stderr.startswith("warning: 3 requests failed: Error code: 400")
    assert len(result.stderr.splitlines()) == 1


def test_no_answer_is_an_error(server: Running, miractl: Run, tmp_path: Path) -> None:
    result = bench(miractl, server.url, prompts(tmp_path, LONG))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: no request was answered: ")


def test_a_server_that_is_not_there(miractl: Run, tmp_path: Path) -> None:
    result = bench(miractl, "http://127.0.0.1:9", prompts(tmp_path, "the"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: no miractl server at http://127.0.0.1:9\n")


def test_so_many_at_a_time(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0
    ask = Asking._ask

    async def count(asking: Asking, api: object, prompt: str) -> Answered:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await ask(asking, api, prompt)  # type: ignore[arg-type]
        finally:
            running -= 1

    monkeypatch.setattr(Asking, "_ask", count)
    asked: list[int] = []
    asking = Asking(Client(server.url), "tiny", 3)
    traffic = asking.measure(["a", "b", "c", "d"], 3, lambda _, done, __: asked.append(done))
    assert (most, asked, len(traffic.answered)) == (3, [1, 2, 3, 4], 4)
