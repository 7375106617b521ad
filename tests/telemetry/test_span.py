"""Differences of counters, and the quantiles of a histogram."""

import pytest

from miractl.telemetry.snapshot import SWITCH_BUCKETS
from miractl.telemetry.span import Span, quantile, restarted
from tests.telemetry.snapshots import BASE, changed, later

EMPTY = (0,) * (len(SWITCH_BUCKETS) + 1)


def counts(**at: int) -> tuple[int, ...]:
    """`counts(b0=3)`: a histogram by bucket."""
    return tuple(at.get(f"b{index}", 0) for index in range(len(EMPTY)))


@pytest.mark.parametrize(
    ("buckets", "share", "seconds"),
    [
        (EMPTY, 0.5, None),
        (counts(b0=10), 0.5, 25e-6),  # the first bucket begins at 0
        (counts(b1=10), 1.0, 100e-6),
        (counts(b1=10), 0.5, 75e-6),
        (counts(b0=50, b4=50), 0.95, 500e-6 + 0.9 * 500e-6),
        (counts(b0=50, b4=50), 0.5, 50e-6),
        (counts(b0=1, b17=99), 0.95, 10.0),  # beyond the last bound nothing is known
    ],
)
def test_quantile(buckets: tuple[int, ...], share: float, seconds: float | None) -> None:
    assert quantile(buckets, share) == (None if seconds is None else pytest.approx(seconds))


def test_since_start_has_the_totals() -> None:
    span = Span.between(None, BASE)
    assert (span.seconds, span.lookups, span.hits, span.tokens) == (100.0, 4000, 3000, 500)
    assert span.hit_rate == 0.75
    assert span.utilization == pytest.approx(0.02)
    assert span.per_second(span.lookups) == pytest.approx(40.0)
    assert span.layers == BASE.layers


def test_between_two_snapshots_only_the_difference_counts() -> None:
    span = Span.between(BASE, later(BASE, seconds=2.0, share=0.9))
    assert (span.seconds, span.lookups, span.hits, span.misses) == (2.0, 80, 72, 8)
    assert span.hit_rate == 0.9
    assert span.rate == pytest.approx(8 * 2**20 / 2.0)
    assert sum(span.switches) == 8
    assert [row.lookups for row in span.layers] == [80, 0, 0, 0]


def test_nothing_happened_is_unknown_not_zero() -> None:
    span = Span.between(BASE, changed(BASE, uptime_seconds=101.0))
    assert span.hit_rate is None
    assert span.wasted_share is None
    assert span.switch_quantile(0.95) is None
    assert span.utilization == 0.0


def test_no_time_passed_has_no_rates() -> None:
    span = Span.between(BASE, BASE)
    assert span.rate is None
    assert span.utilization is None


def test_utilization_never_exceeds_one() -> None:
    busier = changed(BASE, uptime_seconds=101.0, transfer={"busy_seconds": 3.02})
    assert Span.between(BASE, busier).utilization == 1.0


@pytest.mark.parametrize(
    "new",
    [
        changed(BASE, uptime_seconds=3.0),
        changed(BASE, uptime_seconds=200.0, cache={"lookups": 10}),
        changed(BASE, uptime_seconds=200.0, work={"steps": 1}),
        changed(BASE, uptime_seconds=200.0, model={"id": "other"}),
    ],
)
def test_a_restart_is_seen(new: object) -> None:
    assert restarted(BASE, new)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not of one run"):
        Span.between(BASE, new)  # type: ignore[arg-type]


def test_the_next_snapshot_is_no_restart() -> None:
    assert not restarted(BASE, later(BASE))


def test_who_was_bypassed_is_a_share_of_all_who_came() -> None:
    """Bets that were used are no misses, and can be bypassed too."""
    cache = {"hits": 3900, "misses": 100, "bypassed": 110}
    span = Span.between(None, changed(BASE, cache=cache))
    assert span.newcomers == 100 + 420
    assert span.bypassed_share == 110 / 520
