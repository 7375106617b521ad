"""Prometheus metrics: one declared list, filled from one snapshot, so that a scrape is consistent.

Base units, counters end in `_total`, ratios are left to the reader (`rate(hits) / rate(lookups)`),
and what is unknown has no sample instead of a 0. Experts are too many to be labels: their heat is
in `/v1/experts` and in the CSV export. `docs/metrics.md` holds what `markdown_table` returns.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from miractl import __version__
from miractl.native.library import available
from miractl.telemetry.snapshot import SWITCH_BUCKETS, Snapshot

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Declared(NamedTuple):
    """One metric with at most one label."""

    name: str  # as scraped; a counter ends in _total
    value: str  # path into the snapshot; "" for a constant 1
    help: str
    label: str | None = None
    label_value: str = ""  # path into the snapshot

    @property
    def kind(self) -> str:
        """Prometheus type."""
        return "counter" if self.name.endswith("_total") else "gauge"


METRICS = (
    Declared("miractl_expert_lookups_total", "cache.lookups", "Experts asked for: hits + misses"),
    Declared("miractl_expert_hits_total", "cache.hits", "Lookups that found a resident expert"),
    Declared("miractl_expert_misses_total", "cache.misses", "Lookups of experts in no slot"),
    Declared("miractl_expert_late_total", "cache.late", "Misses already on their way"),
    Declared(
        "miractl_expert_bypassed_total", "cache.bypassed", "Misses that did not become resident"
    ),
    Declared("miractl_expert_evictions_total", "cache.evictions", "Experts that lost their slot"),
    Declared("miractl_expert_waves_total", "cache.waves", "Extra passes for want of slots"),
    Declared("miractl_expert_waited_total", "cache.waited", "Misses whose transfer was under way"),
    Declared("miractl_expert_copied_total", "cache.copied", "Misses brought on demand"),
    Declared("miractl_expert_host_total", "cache.on_host", "Misses that the host computed"),
    Declared("miractl_expert_resident", "cache.resident", "Experts in slots now"),
    Declared("miractl_expert_slots", "cache.slots", "Slots, whatever they are for"),
    Declared("miractl_expert_budget_bytes", "cache.budget_bytes", "Memory experts may take"),
    Declared("miractl_expert_resident_bytes", "cache.resident_bytes", "Memory of occupied slots"),
    Declared("miractl_expert_size_bytes", "model.expert_bytes", "Memory of one expert in a slot"),
    Declared(
        *("miractl_transfer_bytes_total", "transfer.bytes", "Bytes brought into slots"),
        *("source", "transfer.source"),
    ),
    Declared(
        *("miractl_transfer_busy_seconds_total", "transfer.busy_seconds", "Time with a transfer"),
        *("source", "transfer.source"),
    ),
    Declared(
        *("miractl_transfer_peak_bytes_per_second", "transfer.peak_bytes_per_second"),
        *("Best transfer rate measured here", "source", "transfer.source"),
    ),
    Declared(
        *("miractl_expert_switch_expected_seconds", "switch.expected_seconds"),
        "One expert's transfer at the best measured rate",
    ),
    Declared("miractl_prefetch_enabled", "prefetch.enabled", "1 when experts are prefetched"),
    Declared("miractl_prefetch_issued_total", "prefetch.issued", "Prefetches decided"),
    Declared("miractl_prefetch_used_total", "prefetch.used", "Prefetches in place when needed"),
    Declared("miractl_prefetch_late_total", "prefetch.late", "Prefetches needed before arrival"),
    Declared("miractl_prefetch_wasted_total", "prefetch.wasted", "Prefetches nobody asked for"),
    Declared(
        "miractl_prefetch_cancelled_total", "prefetch.cancelled", "Dropped before a byte moved"
    ),
    Declared(
        "miractl_prefetch_wasted_bytes_total", "prefetch.wasted_bytes", "Bytes nobody asked for"
    ),
    Declared(
        *("miractl_prefetch_withheld_total", "prefetch.withheld"),
        "Prefetches that would not have paid",
    ),
    Declared(
        *("miractl_prefetch_switches_total", "prefetch.switches"),
        "Times that prefetching stopped or resumed by itself",
    ),
    Declared("miractl_prefetch_paused", "prefetch.off", "1 while prefetching would lose time"),
    Declared("miractl_staged_experts", "prefetch.staged", "Prefetched experts that await use"),
    Declared(
        "miractl_staged_experts_limit", "prefetch.staged_limit", "Most experts staged at a time"
    ),
    Declared("miractl_process_memory_bytes", "memory.rss_bytes", "Resident memory of the server"),
    Declared("miractl_arena_bytes", "memory.arena_bytes", "Memory preallocated for expert slots"),
    Declared("miractl_cuda_allocated_bytes", "memory.allocated_bytes", "Device memory in tensors"),
    Declared(
        "miractl_cuda_reserved_bytes", "memory.reserved_bytes", "Device memory of the allocator"
    ),
    Declared(
        *("miractl_cuda_inactive_split_bytes", "memory.inactive_split_bytes"),
        "Reserved device memory lost in fragments",
    ),
    Declared(
        *("miractl_cuda_alloc_retries_total", "memory.alloc_retries"),
        "Allocations that had to empty the cache first",
    ),
    Declared("miractl_cuda_ooms_total", "memory.ooms", "Device allocations that failed"),
    Declared("miractl_tokens_total", "work.tokens", "Token positions computed, prompts included"),
    Declared("miractl_steps_total", "work.steps", "Forward passes"),
    Declared("miractl_uptime_seconds", "uptime_seconds", "Time since the start of the server"),
    Declared("miractl_profile_info", "", "1; the profile in force", "profile", "profile"),
    Declared("miractl_model_info", "", "1; the served model", "model", "model.id"),
    Declared(
        *("miractl_expert_format_info", "", "1; how an expert lies in its slot"),
        *("format", "model.expert_format"),
    ),
    Declared(
        *("miractl_expert_kernels_info", "", "1; what computes experts: torch, or a kernel's ISA"),
        *("kernels", "model.kernels"),
    ),
)
SWITCH = Declared(
    *("miractl_expert_switch_seconds", "switch"),
    "From the demand for a missing expert until it can be computed",
)
READY = Declared("miractl_ready", "", "1 when the model answers, 0 while it loads")
NATIVE = Declared("miractl_native_available", "", "1 when the CPU kernels can be used, else 0")
BUILD = Declared("miractl_build_info", "", "1; versions of what runs", "version, torch, cuda")


class Metrics(Collector):
    """The metrics of one server, on a registry of their own.

    Args:
        source: The present snapshot, or None while the model loads. Called once a scrape.
        build: Further labels of `miractl_build_info`: `torch` and `cuda`, "" when unknown.
    """

    def __init__(
        self, source: Callable[[], Snapshot | None], build: Mapping[str, str] | None = None
    ) -> None:
        self._source = source
        self._build = {"version": __version__, "torch": "", "cuda": "", **(build or {})}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """The answer to a scrape, in the text format that CONTENT_TYPE names."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Metric families of one moment: readiness and build alone while the model loads."""
        snapshot = self._source()
        yield GaugeMetricFamily(READY.name, READY.help, value=snapshot is not None)
        build = GaugeMetricFamily(BUILD.name, BUILD.help, labels=tuple(self._build))
        build.add_metric([_valid(text) for text in self._build.values()], 1)
        yield build
        yield GaugeMetricFamily(NATIVE.name, NATIVE.help, value=available())
        if snapshot is None:
            return
        for declared in METRICS:
            yield from _family(declared, snapshot)
        yield _switch_family(snapshot)


def _valid(text: str) -> str:
    """A label value that can be sent as UTF-8: file names may hold bytes that cannot."""
    return text.encode("utf-8", "replace").decode()


def _family(declared: Declared, snapshot: Snapshot) -> Iterator[Metric]:
    value = attrgetter(declared.value)(snapshot) if declared.value else 1
    if value is None:
        return
    labels = [declared.label] if declared.label else []
    make = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
    family = make(declared.name, declared.help, labels=labels)
    label_value = attrgetter(declared.label_value)(snapshot) if declared.label else None
    family.add_metric([_valid(label_value)] if label_value is not None else [], float(value))
    yield family


def _switch_family(snapshot: Snapshot) -> Metric:
    bounds = [*map(floatToGoString, SWITCH_BUCKETS), "+Inf"]
    cumulative = list(zip(bounds, accumulate(snapshot.switch.buckets), strict=True))
    family = HistogramMetricFamily(SWITCH.name, SWITCH.help)
    family.add_metric([], buckets=cumulative, sum_value=snapshot.switch.sum_seconds)
    return family


def markdown_table() -> str:
    """Every metric as a Markdown table, in the order of a scrape."""
    rows: Iterable[tuple[Declared, str]] = (
        (READY, "gauge"),
        (BUILD, "gauge"),
        (NATIVE, "gauge"),
        *((declared, declared.kind) for declared in METRICS),
        (SWITCH, "histogram"),
    )
    lines = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    lines += [f"| `{m.name}` | {kind} | {m.label or ''} | {m.help} |" for m, kind in rows]
    return "\n".join(lines) + "\n"
