"""Is the service well? Four figures, each against what this machine and this cache can do.

A fixed number would be wrong for most models: an expert may be 100 kB or 350 MB, and a tenth or all
of them may fit. Advice follows from the counters of the same span, never from a fixed direction.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from miractl.telemetry.snapshot import Snapshot
from miractl.telemetry.span import Span, ratio
from miractl.units import format_bytes, format_rate, format_seconds, format_share

FEWEST_LOOKUPS = 200  # below that a rate says nothing
FEWEST_SWITCHES = 20
FEWEST_BETS = 50
BUSIEST = 0.90  # share of time; above it requests queue for the link
MOST_WASTED = 0.30  # share of the transferred bytes that were wrong bets
SLOWEST_LINK = 0.50  # of the measured peak, while a transfer is under way
# Below this the hand-over between threads sets the time of a switch, not the transfer; where the
# processors also read and compute, they are often busy.
SHORTEST_SWITCH = {"host": 1e-3, "disk": 5e-3, "emulated": 1e-3}  # by the source of transfers
LINKS = {"host": "the link", "disk": "the disk", "emulated": "the emulated link"}
MOST_FRAGMENTED = 0.20


class Status(StrEnum):
    """`unknown` means that nothing can be said yet, or not on this device."""

    OK = "ok"
    WARN = "warn"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One figure, its healthy range and what to change, in words."""

    figure: str
    value: float | None
    value_text: str
    healthy_text: str
    status: Status
    advice: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return asdict(self)


def judge(snapshot: Snapshot, span: Span) -> tuple[Verdict, ...]:
    """The four verdicts: hit rate, transfer, switch latency, fragmentation.

    Args:
        snapshot: The present state: capacity, latencies of the last switches, memory.
        span: The stretch of time to judge: since the start, or the last seconds.
    """
    return (
        judge_hit_rate(snapshot, span),
        judge_transfer(snapshot, span),
        judge_switch(snapshot, span),
        judge_fragmentation(snapshot, span),
    )


def total_experts(snapshot: Snapshot) -> int:
    """Experts of all MoE layers."""
    return len(snapshot.model.layers) * snapshot.model.experts


def fitting_share(snapshot: Snapshot) -> float:
    """Share of all experts that slots hold even while all bets are placed: what any cache hits."""
    residents = max(snapshot.cache.slots - snapshot.prefetch.staged_limit, 0)
    return min(residents / max(total_experts(snapshot), 1), 1.0)


def judge_hit_rate(snapshot: Snapshot, span: Span) -> Verdict:
    """At least the share of experts that fit; the first filling of the slots does not count."""
    healthy = fitting_share(snapshot)
    text = f"≥ {format_share(healthy)}, the share that fits"
    value, shown = span.hit_rate, format_share(span.hit_rate)
    if span.lookups < FEWEST_LOOKUPS:
        return Verdict("hit rate", value, shown, text, Status.UNKNOWN, "too few lookups to judge")
    since_start = span.lookups == snapshot.cache.lookups
    first_fills = min(snapshot.cache.slots, span.misses) if since_start else 0
    warm = ratio(span.hits, span.lookups - first_fills)
    if warm is None:
        return Verdict("hit rate", value, shown, text, Status.UNKNOWN, "the cache is filling")
    if warm >= healthy:
        return Verdict("hit rate", value, shown, text, Status.OK)
    return Verdict("hit rate", value, shown, text, Status.WARN, _hit_rate_advice(snapshot, span))


def _hit_rate_advice(snapshot: Snapshot, span: Span) -> str:
    """What the misses were: queued for the link, passed by full slots, or evicted too soon."""
    cache = snapshot.cache
    if span.late > span.misses / 2 and (span.utilization or 0) <= BUSIEST:
        return (
            f"{span.late} of {span.misses} misses were on their way: the guesses are right "
            "and come too late; raise max_staged_experts"
        )
    if _wastes(span):
        return _waste_advice(span)
    if span.bypassed > span.newcomers / 2:
        return (
            f"{span.bypassed} of {span.newcomers} newcomers found the slots held by older experts: "
            "lower heat_decay_factor so that old heat fades, or lower cache_threshold"
        )
    if span.waves > span.steps / 10:
        return (
            f"steps needed more experts than there are slots ({span.waves} extra passes): "
            f"{_more_memory(snapshot)}, or lower --max-concurrency"
        )
    if span.evictions > span.misses / 2:
        return f"experts are evicted before their next use: {_more_memory(snapshot)}"
    if cache.resident < cache.slots - snapshot.prefetch.staged_limit:
        return f"{cache.resident} of {cache.slots} slots are in use: the cache is filling"
    return f"misses spread over all layers: {_more_memory(snapshot)}"


def _more_memory(snapshot: Snapshot) -> str:
    everything = total_experts(snapshot) * snapshot.model.expert_bytes
    return (
        f"give more with --expert-memory (now {format_bytes(snapshot.cache.budget_bytes)}, "
        f"all experts need {format_bytes(everything)})"
    )


def _wastes(span: Span) -> bool:
    return (span.wasted_share or 0) > MOST_WASTED and span.bets_settled >= FEWEST_BETS


def _waste_advice(span: Span) -> str:
    return (
        f"{format_share(span.wasted_share)} of the bytes were prefetched for nothing "
        f"({span.wasted} of {span.bets_settled} prefetches): lower max_staged_experts, "
        "or turn prefetch off with --no-prefetch"
    )


def judge_transfer(snapshot: Snapshot, span: Span) -> Verdict:
    """Share of the time with a transfer under way; also what the transfers were for."""
    link = LINKS[snapshot.transfer.source]
    text = f"≤ {BUSIEST * 100:.0f} % busy, ≤ {MOST_WASTED * 100:.0f} % wasted"
    value = span.utilization
    shown = f"{format_share(value)} busy, {format_rate(span.rate)}"
    if value is None or span.lookups < FEWEST_LOOKUPS:
        return Verdict("transfer", value, shown, text, Status.UNKNOWN, "too few lookups to judge")
    if _wastes(span):
        return Verdict("transfer", value, shown, text, Status.WARN, _waste_advice(span))
    if value > BUSIEST:
        reason = f"{link} is the limit: {_busy_advice(snapshot, span)}"
        return Verdict("transfer", value, shown, text, Status.WARN, reason)
    return Verdict("transfer", value, shown, text, Status.OK)


def _busy_advice(snapshot: Snapshot, span: Span) -> str:
    peak = snapshot.transfer.peak_bytes_per_second
    if peak and span.busy_rate and span.busy_rate < SLOWEST_LINK * peak:
        return (
            f"it gives {format_rate(span.busy_rate)} of {format_rate(peak)} measured; "
            "look for other load on it or on the processors"
        )
    if snapshot.cache.slots < total_experts(snapshot):
        return f"{_more_memory(snapshot)}, or send fewer requests at a time"
    return "the cache is filling for the first time"


def judge_switch(snapshot: Snapshot, span: Span) -> Verdict:
    """P95 of the last switches against one step of misses, one transfer after another."""
    switch, transfer, model = snapshot.switch, snapshot.transfer, snapshot.model
    expected = switch.expected_seconds
    if expected is None and transfer.peak_bytes_per_second:
        expected = model.expert_bytes / transfer.peak_bytes_per_second
    value, shown = switch.p95_seconds, f"P95 {format_seconds(switch.p95_seconds)}"
    if expected is None:
        advice = "the best transfer rate of this machine is not measured yet"
        return Verdict("switch latency", value, shown, "n/a", Status.UNKNOWN, advice)
    limit = max(model.top_k * expected, SHORTEST_SWITCH[transfer.source])
    text = f"P95 ≤ {format_seconds(limit)}, for {format_bytes(model.expert_bytes)} experts"
    if value is None or switch.count < FEWEST_SWITCHES:
        advice = "too few switches to judge"
        return Verdict("switch latency", value, shown, text, Status.UNKNOWN, advice)
    if value <= limit:
        return Verdict("switch latency", value, shown, text, Status.OK)
    advice = _switch_advice(snapshot, span)
    return Verdict("switch latency", value, shown, text, Status.WARN, advice)


def _switch_advice(snapshot: Snapshot, span: Span) -> str:
    source = LINKS[snapshot.transfer.source]
    if _wastes(span):
        return f"misses wait behind prefetches: {_waste_advice(span)}"
    if (span.utilization or 0) > BUSIEST:
        return f"misses queue for {source}: {_busy_advice(snapshot, span)}"
    peak = snapshot.transfer.peak_bytes_per_second
    if peak and span.busy_rate and span.busy_rate < SLOWEST_LINK * peak:
        return (
            f"{source} gives {format_rate(span.busy_rate)} while busy, {format_rate(peak)} was "
            "measured: look for other load on it or on the processors"
        )
    if span.waves > span.steps / 10:
        return f"large steps miss many experts at once: {_more_memory(snapshot)}"
    return f"many experts miss in the same step: {_more_memory(snapshot)}"


def judge_fragmentation(snapshot: Snapshot, span: Span) -> Verdict:
    """Share of reserved device memory lost in fragments; retries and failures count as well."""
    value = snapshot.memory.fragmentation
    text = f"≤ {MOST_FRAGMENTED * 100:.0f} % of reserved memory"
    if value is None:
        where = "n/a on the CPU" if snapshot.model.device == "cpu" else "n/a with this allocator"
        return Verdict("fragmentation", None, "n/a", where, Status.UNKNOWN)
    shown = format_share(value)
    if span.ooms or span.alloc_retries:
        advice = (
            f"{span.alloc_retries} allocations had to empty the cache and {span.ooms} failed: "
            "lower --expert-memory or --max-concurrency"
        )
        return Verdict("fragmentation", value, shown, text, Status.WARN, advice)
    if value > MOST_FRAGMENTED:
        advice = "start with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        return Verdict("fragmentation", value, shown, text, Status.WARN, advice)
    return Verdict("fragmentation", value, shown, text, Status.OK)
