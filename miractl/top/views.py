"""What each panel says, in words and numbers: one source for the screen and for the text."""

from collections.abc import Callable
from dataclasses import dataclass

from miractl.telemetry.health import Verdict, fitting_share, total_experts
from miractl.telemetry.snapshot import SWITCH_BUCKETS, Snapshot
from miractl.telemetry.span import Span, ratio
from miractl.top.history import Reading
from miractl.units import format_bytes, format_rate, format_seconds, format_share

NOW_AND_START = ("now", "since start")


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts from `low` to `high` seconds, bucket by bucket."""

    counts: tuple[int, ...]
    low: str
    high: str


@dataclass(frozen=True, slots=True)
class View:
    """One panel. Rows stand in order of importance; a small panel shows the first ones."""

    title: str
    verdict: Verdict
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  # label, then one text a column
    trend: tuple[float | None, ...] | None = None  # in [0, 1], oldest first
    histogram: Histogram | None = None
    gauge: tuple[str, float | None] | None = None  # a share with its label


def views(reading: Reading) -> tuple[View, View, View, View]:
    """The four panels, in the order of their keys 1 to 4."""
    hit_rate, transfer, switch, fragmentation = reading.verdicts
    return (
        _hit_rate(reading, hit_rate),
        _transfer(reading, transfer),
        _switch(reading, switch),
        _memory(reading.snapshot, fragmentation),
    )


def per_second(value: float | None) -> str:
    """`1,240/s`, `3.2/s`, `0/s`."""
    if value is None:
        return "n/a"
    return f"{value:,.0f}/s" if value >= 99.5 or value == 0 else f"{value:.1f}/s"


def _row(label: str, reading: Reading, text: Callable[[Span], str]) -> tuple[str, str, str]:
    return (label, text(reading.now) if reading.now else "n/a", text(reading.start))


def _hit_rate(reading: Reading, verdict: Verdict) -> View:
    cache = reading.snapshot.cache
    rows = (
        _row("hit rate", reading, lambda s: format_share(s.hit_rate)),
        _row("lookups", reading, lambda s: per_second(s.per_second(s.lookups))),
        _row("misses", reading, lambda s: per_second(s.per_second(s.misses))),
        _row("evictions", reading, lambda s: per_second(s.per_second(s.evictions))),
        _row("late misses", reading, lambda s: format_share(ratio(s.late, s.misses))),
        _row("bypassed", reading, lambda s: format_share(s.bypassed_share)),
    )
    gauge = (f"slots {cache.resident} of {cache.slots}", ratio(cache.resident, cache.slots))
    title, trend = "hit rate", reading.hit_rates
    return View(title, verdict, NOW_AND_START, rows, trend=trend, gauge=gauge)


def _transfer(reading: Reading, verdict: Verdict) -> View:
    transfer = reading.snapshot.transfer
    peak = transfer.peak_bytes_per_second

    def of_peak(span: Span) -> str:
        return format_share(ratio(span.busy_rate, peak) if span.busy_rate and peak else None)

    rows = (
        _row("busy", reading, lambda s: format_share(s.utilization)),
        _row("rate", reading, lambda s: format_rate(s.rate)),
        _row("of peak", reading, of_peak),
        _row("wasted", reading, lambda s: format_share(s.wasted_share)),
        _row("prefetches", reading, lambda s: per_second(s.per_second(s.issued))),
        _row("in time", reading, lambda s: format_share(ratio(s.used, s.bets_settled))),
    )
    where = {"host": "PCIe", "emulated": "emulated link"}.get(transfer.source, transfer.source)
    trend = reading.utilizations
    return View(f"transfer from {where}", verdict, NOW_AND_START, rows, trend=trend)


def _switch(reading: Reading, verdict: Verdict) -> View:
    switch = reading.snapshot.switch

    def quantiles(label: str, share: float, recent: float | None) -> tuple[str, ...]:
        spans = (reading.now, reading.start)
        now, start = (s.switch_quantile(share) if s else None for s in spans)
        return (label, format_seconds(now), format_seconds(recent), format_seconds(start))

    rows = (
        quantiles("P50", 0.50, switch.p50_seconds),
        quantiles("P95", 0.95, switch.p95_seconds),
        ("expected", format_seconds(switch.expected_seconds), "", ""),
    )
    columns = ("now", "last 1k", "start")
    return View("switch latency", verdict, columns, rows, histogram=_histogram(switch.buckets))


def _histogram(buckets: tuple[int, ...]) -> Histogram | None:
    """The occupied stretch of the buckets, at least eight wide so that the shape stays calm."""
    used = [index for index, count in enumerate(buckets) if count]
    if not used:
        return None
    first, last = used[0], used[-1]
    while last - first < 7 and (first > 0 or last < len(buckets) - 1):
        first, last = max(first - 1, 0), min(last + 1, len(buckets) - 1)
    low = 0.0 if first == 0 else SWITCH_BUCKETS[first - 1]
    high = format_seconds(SWITCH_BUCKETS[last]) if last < len(SWITCH_BUCKETS) else "more"
    return Histogram(buckets[first : last + 1], "0" if low == 0 else format_seconds(low), high)


def _memory(snapshot: Snapshot, verdict: Verdict) -> View:
    memory, cache = snapshot.memory, snapshot.cache
    device = (
        ("allocated", format_bytes(memory.allocated_bytes)),
        ("reserved", format_bytes(memory.reserved_bytes)),
    )
    rows = (
        ("fragmentation", format_share(memory.fragmentation)),
        *(device if memory.reserved_bytes is not None else ()),
        ("expert arena", format_bytes(memory.arena_bytes)),
        *((("pools", cache.slots_text()),) if len(cache.pools) > 1 else ()),
        ("process", format_bytes(memory.rss_bytes)),
    )
    resident, budget = cache.resident_bytes, cache.budget_bytes
    words = f"experts {format_bytes(resident)} of {format_bytes(budget)}"
    return View("memory", verdict, ("",), rows, gauge=(words, ratio(resident, budget)))


def title_line(snapshot: Snapshot) -> str:
    """The model, where it runs and under which profile."""
    model = snapshot.model
    return " · ".join(
        (model.id, f"profile {snapshot.profile}", f"{model.device} {model.dtype}", uptime(snapshot))
    )


def uptime(snapshot: Snapshot) -> str:
    """`up 1d 02h`, `up 1h 02m`, `up 5m 09s`, `up 12s`."""
    seconds = int(snapshot.uptime_seconds)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"up {days}d {hours % 24:02}h"
    if hours:
        return f"up {hours}h {minutes % 60:02}m"
    return f"up {minutes}m {seconds % 60:02}s" if minutes else f"up {seconds}s"


def capacity_line(reading: Reading) -> str:
    """How many experts there are, how many fit, what is prefetched, and the pace."""
    snapshot, span = reading.snapshot, reading.now or reading.start
    model, bets = snapshot.model, snapshot.prefetch
    prefetch = f"prefetch {bets.mode}" if bets.enabled else "prefetch off"
    mean = " on average" if len(snapshot.cache.pools) > 1 else ""
    return " · ".join(
        (
            f"{total_experts(snapshot)} experts of {format_bytes(model.expert_bytes)}{mean}, "
            f"{format_share(fitting_share(snapshot))} fit",
            prefetch,
            f"tokens {per_second(span.per_second(span.tokens))}",
        )
    )


@dataclass(frozen=True, slots=True)
class LayerRate:
    """One layer's hit rate since the start."""

    layer: int
    rate: float | None


def layer_rates(reading: Reading) -> tuple[LayerRate, ...]:
    """Every MoE layer in order."""
    return tuple(LayerRate(row.layer, ratio(row.hits, row.lookups)) for row in reading.start.layers)


def worst_layers(rates: tuple[LayerRate, ...], room: int) -> tuple[LayerRate, ...]:
    """The `room` layers with the lowest rates, in order of the layers."""
    known = sorted(rates, key=lambda row: (row.rate is None, row.rate or 0.0, row.layer))
    return tuple(sorted(known[:room], key=lambda row: row.layer))
