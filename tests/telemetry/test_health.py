"""Verdicts: what is healthy depends on what fits, and advice follows from the counters."""

from typing import Any

import pytest

from miractl.telemetry.health import Status, Verdict, fitting_share, judge
from miractl.telemetry.snapshot import Snapshot
from miractl.telemetry.span import Span
from tests.telemetry.snapshots import BASE, MIB, changed, on_cuda

HIT_RATE, TRANSFER, SWITCH, FRAGMENTATION = range(4)
LOW = {"hits": 800, "misses": 3200, "late": 0, "bypassed": 0, "evictions": 0, "waves": 0}


def verdict(figure: int, snapshot: Snapshot) -> Verdict:
    return judge(snapshot, Span.between(None, snapshot))[figure]


def test_a_healthy_server() -> None:
    statuses = [v.status for v in judge(BASE, Span.between(None, BASE))]
    assert statuses == [Status.OK, Status.OK, Status.OK, Status.UNKNOWN]


def test_the_healthy_hit_rate_is_the_share_that_fits() -> None:
    assert fitting_share(BASE) == 16 / 64  # staging slots hold no residents
    assert verdict(HIT_RATE, BASE).healthy_text == "≥ 25.0 %, the share that fits"
    assert fitting_share(changed(BASE, cache={"slots": 500})) == 1.0


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"cache": LOW | {"late": 2000}}, "too late; raise max_staged_experts"),
        (
            {"cache": LOW | {"late": 2000}, "transfer": {"busy_seconds": 99.0}},
            "misses spread over all layers",  # earlier prefetches cannot help a link that is full
        ),
        (
            {"cache": LOW, "prefetch": {"wasted": 900, "wasted_bytes": 900 * MIB}},
            "lower max_staged_experts, or turn prefetch off",
        ),
        (
            {"cache": LOW | {"bypassed": 2000}},
            "2000 of 3620 newcomers found the slots held by older experts: lower heat_decay_factor",
        ),
        ({"cache": LOW | {"waves": 100}}, "more experts than there are slots (100 extra passes)"),
        (
            {"cache": LOW | {"evictions": 2000}},
            "evicted before their next use: give more with --expert-memory "
            "(now 20 MiB, all experts need 64 MiB)",
        ),
        ({"cache": LOW | {"resident": 5}}, "5 of 20 slots are in use"),
        ({"cache": LOW}, "misses spread over all layers"),
    ],
)
def test_advice_for_a_low_hit_rate(parts: dict[str, Any], words: str) -> None:
    low = verdict(HIT_RATE, changed(BASE, **parts))
    assert low.status is Status.WARN
    assert words in str(low.advice)


def test_filling_the_slots_for_the_first_time_is_no_fault() -> None:
    cache = {"slots": 68, "resident": 64, "lookups": 264, "hits": 200, "misses": 64}
    everything_fits = changed(BASE, cache=cache | {"evictions": 0, "late": 0, "bypassed": 0})
    assert verdict(HIT_RATE, everything_fits).status is Status.OK


def test_a_handful_of_lookups_is_not_judged() -> None:
    young = changed(BASE, cache={"lookups": 10, "hits": 0, "misses": 10})
    for figure in (HIT_RATE, TRANSFER):
        assert verdict(figure, young).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"transfer": {"busy_seconds": 99.0}},
            "the disk is the limit: it gives 16.7 MB/s of 1 GB/s",
        ),
        (
            {"transfer": {"busy_seconds": 99.0, "bytes": 95 * 10**9}},
            "the disk is the limit: give more with --expert-memory",
        ),
        (
            {"prefetch": {"wasted_bytes": 1000 * MIB, "wasted": 500}},
            "63.3 % of the bytes were prefetched for nothing (500 of 980 prefetches)",
        ),
    ],
)
def test_advice_for_transfers(parts: dict[str, Any], words: str) -> None:
    busy = verdict(TRANSFER, changed(BASE, **parts))
    assert busy.status is Status.WARN
    assert words in str(busy.advice)


def test_on_cuda_the_link_is_the_limit() -> None:
    busy = changed(on_cuda(), transfer={"busy_seconds": 99.0})
    assert str(verdict(TRANSFER, busy).advice).startswith("the link is the limit")


@pytest.mark.parametrize(
    ("source", "expert_bytes", "peak", "p95", "status"),
    [
        ("host", 9_437_184, 25e9, 1.4e-3, Status.OK),  # 4 transfers of 0.38 ms
        ("host", 9_437_184, 25e9, 1.6e-3, Status.WARN),
        ("host", 352_321_536, 25e9, 40e-3, Status.OK),  # a coarse expert takes 14 ms
        ("host", 352_321_536, 25e9, 60e-3, Status.WARN),
        ("host", 100_000, 25e9, 0.9e-3, Status.OK),  # hand-over between threads, not transfer
        ("host", 100_000, 25e9, 4e-3, Status.WARN),
        ("disk", 100_000, 25e9, 4e-3, Status.OK),  # the processors read and compute too
        ("disk", 100_000, 25e9, 6e-3, Status.WARN),
        ("host", 100_000, None, 0.9e-3, Status.UNKNOWN),
    ],
)
def test_switch_latency_is_judged_by_the_experts_size(
    source: str, expert_bytes: int, peak: float | None, p95: float, status: Status
) -> None:
    snapshot = changed(
        BASE,
        model={"expert_bytes": expert_bytes},
        transfer={"peak_bytes_per_second": peak, "source": source},
        switch={"expected_seconds": None, "p95_seconds": p95},
    )
    assert verdict(SWITCH, snapshot).status is status


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {"prefetch": {"wasted_bytes": 1000 * MIB, "wasted": 500}},
            "misses wait behind prefetches",
        ),
        ({"transfer": {"busy_seconds": 99.0}}, "misses queue for the disk"),
        ({"transfer": {"busy_seconds": 20.0}}, "gives 82.8 MB/s while busy, 1 GB/s was measured"),
        ({"cache": {"waves": 100}}, "large steps miss many experts at once"),
        ({}, "many experts miss in the same step"),
    ],
)
def test_advice_for_slow_switches(parts: dict[str, Any], words: str) -> None:
    slow = verdict(SWITCH, changed(BASE, switch={"p95_seconds": 0.5}, **parts))
    assert slow.status is Status.WARN
    assert words in str(slow.advice)


def test_fragmentation_is_not_applicable_on_the_cpu() -> None:
    found = verdict(FRAGMENTATION, BASE)
    assert (found.value, found.value_text, found.status) == (None, "n/a", Status.UNKNOWN)


@pytest.mark.parametrize(
    ("memory", "status", "words"),
    [
        ({}, Status.OK, "None"),
        ({"inactive_split_bytes": 210 * MIB}, Status.WARN, "expandable_segments:True"),
        ({"allocated_bytes": 999 * MIB}, Status.OK, "None"),  # a full cache is no fragment
        ({"alloc_retries": 2}, Status.WARN, "2 allocations had to empty the cache"),
        ({"ooms": 1}, Status.WARN, "1 failed"),
    ],
)
def test_fragmentation_on_cuda(memory: dict[str, int], status: Status, words: str) -> None:
    found = verdict(FRAGMENTATION, changed(on_cuda(), memory=memory))
    assert found.status is status
    assert words in str(found.advice)
