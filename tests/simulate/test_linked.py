"""Policies on a link: bets are charged, late is no hit, and a profile is a machine."""

from dataclasses import replace

import numpy as np
import pytest

from miractl.errors import UsageError
from miractl.native.replay import Routing
from miractl.profiles import Hardware, load_profile
from miractl.simulate.linked import LinkScore, Setting, compare_on_link, foresee, link_verdict
from miractl.simulate.study import compare
from miractl.simulate.whatif import Asked, setting_for
from miractl.telemetry.trace import Trace
from tests.simulate.conftest import random_routing

pytestmark = pytest.mark.usefixtures("kernels")
QUICK = Setting(expert_bytes=10**7, transfer=0.5e-3, compute=1e-3, staged=4, horizon=3)
NAMES = ["lru", "learned", "belady"]


def played(routing: Routing, setting: Setting) -> dict[str, LinkScore]:
    guesses = foresee(routing, setting.reach)
    found = compare_on_link(routing, 4, NAMES, setting, guesses, 0.05)
    return {score.policy: score for score in found}


def test_prefetches_turn_misses_into_hits_and_save_time() -> None:
    routing = random_routing(5, 1500, 4, 16, 2)
    alone = {score.policy: score for score in compare(routing, 4, NAMES)}
    for name, score in played(routing, QUICK).items():
        assert score.hit_rate > alone[name].hit_rate
        assert score.seconds < score.seconds_without
        assert score.stall == pytest.approx(score.seconds - 4 * QUICK.compute)
        misses = alone[name].misses_per_token
        assert score.stall_without == pytest.approx(misses * QUICK.transfer)
        assert 0 <= score.late_rate <= 1 - alone[name].hit_rate
        assert score.wasted_bytes > 0


def test_without_staging_there_is_nothing_to_save() -> None:
    routing = random_routing(5, 100, 2, 8, 2)
    for score in played(routing, replace(QUICK, staged=0)).values():
        assert score.saved == 0
        assert score.wasted_bytes == score.late_rate == 0


def test_a_slow_link_looks_further_ahead() -> None:
    assert [replace(QUICK, transfer=t).reach for t in (0.5e-3, 1.5e-3, 2.5e-3, 1.0)] == [1, 2, 3, 3]


@pytest.mark.parametrize(
    ("seconds", "without", "stall", "said"),
    [
        (0.08, 0.1, 0.05, "Prefetches pay: 80 ms a token instead of 100 with learned, 20 % less."),
        (0.0999, 0.1, 0.05, "Prefetches do not pay"),
        (0.1, 0.1, 0.0, "Prefetches have nothing to gain"),
    ],
)
def test_the_sentence(seconds: float, without: float, stall: float, said: str) -> None:
    score = LinkScore("learned", 4, 0.5, 0.1, 0.0, stall, seconds, stall, without)
    assert link_verdict([score]).startswith(said)


def trace_of(model: str | None) -> tuple[Trace, Routing]:
    ids = np.argsort(np.random.default_rng(0).random((3, 24, 32)), axis=2)[:, :, :4]
    return Trace("t.npz", ids, model=model), Routing(ids, 32)


def test_a_profile_gives_link_slots_sizes_and_times() -> None:
    trace, routing = trace_of("openai/gpt-oss-20b")
    setting, slots = setting_for(Asked(0.05, profile=load_profile("a10")), trace, routing)
    assert setting.expert_bytes == 2 * (3 * 2880 * 2880 + 3 * 2880)  # bfloat16, with biases
    assert setting.transfer == pytest.approx(setting.expert_bytes / (0.8 * 31.5e9), rel=0.01)
    assert 1e-4 < setting.compute < 1e-3
    assert setting.staged == 3
    assert slots is not None
    assert 8 < slots < 24
    own = Asked(0.05, link=1e9, expert_bytes=10**6, layer_seconds=2e-3, profile=load_profile("a10"))
    given, _ = setting_for(own, trace, routing)
    assert (given.transfer, given.compute) == (1e-3, 2e-3)


def test_without_a_profile_a_layer_takes_its_part_of_the_token() -> None:
    trace, routing = trace_of(None)
    setting, slots = setting_for(Asked(0.048, link=1e9, expert_bytes=10**6), trace, routing)
    assert setting.compute == pytest.approx(2e-3)
    assert slots is None
    assert any("--token-time over 24 layers" in note for note in setting.assumptions)


def test_a_recording_says_how_large_an_expert_is() -> None:
    trace, routing = trace_of("my/own")
    trace = replace(trace, expert_bytes=10**6)
    setting, slots = setting_for(Asked(0.048, profile=load_profile("a10")), trace, routing)
    assert setting.expert_bytes == 10**6
    assert setting.compute == pytest.approx(2e-3)
    assert setting.transfer == pytest.approx(10**6 / (0.8 * 31.5e9), rel=0.01)
    assert slots is None
    assert any("see --slots" in note for note in setting.assumptions)
    linked, _ = setting_for(Asked(0.05, link=1e9), trace, routing)
    assert linked.transfer == 1e-3
    # What a slot of the planned card takes goes before what one took where it was recorded.
    known = replace(trace, model="gpt-oss-20b")
    planned, _ = setting_for(Asked(0.05, profile=load_profile("a10")), known, routing)
    assert planned.expert_bytes > 10**7


def test_a_profile_that_is_of_no_help_is_refused() -> None:
    a10 = load_profile("a10")
    trace, routing = trace_of(None)
    with pytest.raises(UsageError, match="its model is none of Mixtral-8x7B, "):
        setting_for(Asked(0.05, profile=a10), trace, routing)
    trace, routing = trace_of("Qwen3-30B-A3B")
    with pytest.raises(UsageError, match="has 48 layers of 128 experts"):
        setting_for(Asked(0.05, profile=a10), trace, routing)
    trace, routing = trace_of("gpt-oss-20b")
    with pytest.raises(UsageError, match="says nothing of a card"):
        setting_for(Asked(0.05, profile=load_profile("default")), trace, routing)
    unknown = replace(a10, hardware=Hardware(memory_bytes=(24 * 10**9,)))
    with pytest.raises(UsageError, match="no link rate"):
        setting_for(Asked(0.05, profile=unknown), trace, routing)
