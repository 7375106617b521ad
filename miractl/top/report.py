"""The screen's numbers without a screen: as text for people and as one JSON object for programs."""

from dataclasses import asdict
from typing import Any

from miractl.telemetry.span import Span
from miractl.top.glyphs import Glyphs, bar
from miractl.top.history import Reading
from miractl.top.views import View, capacity_line, layer_rates, title_line, views
from miractl.units import format_share

SCHEMA = "miractl.top/1"
_LABEL, _CELL, _BAR = 15, 13, 24


def report_text(reading: Reading, glyphs: Glyphs) -> str:
    """The four panels one below the other, then the layers; plain text without escape codes."""
    blocks = [f"{title_line(reading.snapshot)}\n{capacity_line(reading)}"]
    blocks += [_panel(view, glyphs) for view in views(reading)]
    lines = ["layers"]
    for row in layer_rates(reading):
        drawn = "".join(bar(row.rate, _BAR, glyphs))
        lines.append(f"  {row.layer:<{_LABEL - 2}}{format_share(row.rate):>{_CELL}}  {drawn}")
    blocks.append("\n".join(lines))
    return glyphs.text("\n\n".join(blocks))


def _panel(view: View, glyphs: Glyphs) -> str:
    header = "".join(f"{name:>{_CELL}}" for name in view.columns)
    lines = [f"{view.title:<{_LABEL}}{header}".rstrip()]
    for label, *cells in view.rows:
        lines.append(f"  {label:<{_LABEL - 2}}{''.join(f'{c:>{_CELL}}' for c in cells)}".rstrip())
    if view.gauge:
        lines.append(f"  {view.gauge[0]}")
    verdict = view.verdict
    mark = glyphs.marks[verdict.status]
    lines.append(f"  {mark} healthy: {verdict.healthy_text}")
    if verdict.advice:
        lines.append(f"    {verdict.advice}")
    return "\n".join(lines)


def report_json(reading: Reading) -> dict[str, Any]:
    """The same numbers in base units; `now` is null for a single snapshot."""
    snapshot = reading.snapshot
    switch, memory = snapshot.switch, snapshot.memory
    return {
        "schema": SCHEMA,
        "timestamp": snapshot.timestamp,
        "uptime_seconds": snapshot.uptime_seconds,
        "model": snapshot.model.id,
        "profile": snapshot.profile,
        "device": snapshot.model.device,
        "now": _span_json(reading.now) if reading.now else None,
        "since_start": _span_json(reading.start),
        "cache": asdict(snapshot.cache),
        "switch": {
            "p50_seconds": switch.p50_seconds,
            "p95_seconds": switch.p95_seconds,
            "expected_seconds": switch.expected_seconds,
        },
        "memory": {**asdict(memory), "fragmentation": memory.fragmentation},
        "layers": [asdict(row) for row in layer_rates(reading)],
        "verdicts": [verdict.to_json() for verdict in reading.verdicts],
    }


def _span_json(span: Span) -> dict[str, Any]:
    return {
        "seconds": span.seconds,
        "hit_rate": span.hit_rate,
        "lookups": span.lookups,
        "hits": span.hits,
        "misses": span.misses,
        "late": span.late,
        "bypassed": span.bypassed,
        "evictions": span.evictions,
        "utilization": span.utilization,
        "bytes": span.bytes,
        "bytes_per_second": span.rate,
        "wasted_share": span.wasted_share,
        "switch_p50_seconds": span.switch_quantile(0.50),
        "switch_p95_seconds": span.switch_quantile(0.95),
        "tokens": span.tokens,
        "tokens_per_second": span.per_second(span.tokens),
    }
