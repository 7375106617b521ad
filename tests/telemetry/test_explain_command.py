"""`miractl explain` against a server that has run a few steps."""

import json

import pytest

from miractl.telemetry import client
from miractl.telemetry.timeline import PARTS, Machine, Moved, StepTimes, Timeline


@pytest.fixture
def answer(monkeypatch):
    parts = dict.fromkeys(PARTS, 0.0) | {"attention": 0.004, "hits": 0.005, "waiting": 0.0005}
    moved = Moved(hits=7, misses=1, late=1, disk_bytes=4096, copy_seconds=0.002)
    one = StepTimes(2, 1, 1, 1.0, 0.01, parts, moved, os_bytes=4096)
    prompt = StepTimes(1, 9, 1, 1.0, 0.02, parts, moved, os_bytes=4096)
    machine = Machine("cpu", 2, 20_000_000, 1_000_000, 7e9, "disk", 1e9)
    timeline = Timeline("demo", machine, (prompt, one))
    monkeypatch.setattr(client.Client, "timeline", lambda self, last: timeline)


def test_it_says_where_the_time_went_and_what_binds(answer, miractl, golden):
    result = miractl("explain")
    assert result.exit_code == 0
    golden("explain.txt", result.stdout)


def test_json_has_the_parts_of_prompts_and_of_decoding(answer, miractl):
    facts = json.loads(miractl("explain", "--json").stdout)
    decode = facts["accounts"]["decode"]
    assert decode["seconds"] == pytest.approx(sum(decode["parts"].values()) + decode["unmeasured"])
    assert decode["bounds"][0]["bytes"] == 28_000_000
    assert facts["accounts"]["prompt"]["tokens"] == 9


def test_a_server_that_did_nothing_yet_is_one_line(monkeypatch, miractl):
    nothing = Timeline("demo", Machine("cpu", 1, 0, 1, None, "disk", None), ())
    monkeypatch.setattr(client.Client, "timeline", lambda self, last: nothing)
    result = miractl("explain")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "has run no step yet" in result.stderr
