"""`miractl status`: how the service is doing, in words."""

import time

import click

from miractl.cli.options import json_option, url_option
from miractl.output import Output
from miractl.telemetry.client import Client
from miractl.telemetry.health import Status, Verdict, judge
from miractl.telemetry.snapshot import Snapshot
from miractl.telemetry.span import Span, restarted
from miractl.units import format_bytes, format_share

SCHEMA = "miractl.health/1"
_FIGURE = 16  # columns of the longest name and a gap


@click.command()
@url_option
@click.option(
    "--over",
    type=click.FloatRange(min=0.25, max=3600),
    metavar="SECONDS",
    help="Judge the next SECONDS instead of the time since the start of the server; the switch"
    " latency is always that of the last 1,000.",
)
@json_option
def command(url: str, over: float | None, as_json: bool) -> None:
    """Say how the running server is doing: four figures, their healthy ranges, what to change.

    \b
    Examples:
      miractl status
      miractl status --over 10
    \b
    The exit code is 0 for a server that answers, whatever the figures say, and 1 for none.
    """
    client = Client(url)
    output = Output(json=as_json)
    snapshot = client.status()
    span = Span.between(None, snapshot)
    if over:
        time.sleep(over)
        old, snapshot = snapshot, client.status()
        span = Span.between(None if restarted(old, snapshot) else old, snapshot)
    verdicts = judge(snapshot, span)
    if as_json:
        output.json(_facts(client.url, snapshot, span, verdicts))
        return
    output.data(_model_lines(snapshot))
    output.data("")
    for verdict in verdicts:
        output.data(_verdict_lines(verdict, output))
    output.data("")
    output.data(_summary(verdicts))


def _model_lines(snapshot: Snapshot) -> str:
    """What is served, where, and how much of it fits."""
    from miractl.top.views import uptime

    model, cache = snapshot.model, snapshot.cache
    total = len(model.layers) * model.experts
    slots = f"{cache.slots} slots" if len(cache.pools) == 1 else cache.slots_text()
    return (
        f"{model.id} · {model.device} {model.dtype} · profile {snapshot.profile} · "
        f"{uptime(snapshot)} · {snapshot.work.tokens:,} tokens\n"
        f"{cache.resident} of {total} experts resident "
        f"({format_share(cache.resident / max(total, 1))}), {slots}, "
        f"{format_bytes(cache.resident_bytes)} of {format_bytes(cache.budget_bytes)}"
    )


def _verdict_lines(verdict: Verdict, output: Output) -> str:
    colors = {Status.OK: "green", Status.WARN: "yellow", Status.UNKNOWN: "dim"}
    mark = output.mark("skip" if verdict.status is Status.UNKNOWN else verdict.status)
    wide = max(len(output.mark(name)) for name in ("ok", "warn", "skip"))
    styled = output.style(mark.ljust(wide), colors[verdict.status])
    line = f"{styled} {verdict.figure:<{_FIGURE}}{verdict.value_text:<26}"
    healthy = "" if verdict.value is None and "n/a" in verdict.healthy_text else "healthy: "
    lines = [f"{line}{output.style(healthy + verdict.healthy_text, 'dim')}"]
    if verdict.advice:
        lines.append(f"{' ' * (wide + 1)}{verdict.advice}")
    return "\n".join(lines)


def _summary(verdicts: tuple[Verdict, ...]) -> str:
    warned = [verdict.figure for verdict in verdicts if verdict.status is Status.WARN]
    if warned:
        return f"needs attention: {', '.join(warned)}"
    if all(verdict.status is Status.UNKNOWN for verdict in verdicts):
        return "nothing to judge yet: send some requests and ask again"
    return "healthy"


def _facts(
    url: str, snapshot: Snapshot, span: Span, verdicts: tuple[Verdict, ...]
) -> dict[str, object]:
    healthy = all(verdict.status is not Status.WARN for verdict in verdicts)
    return {
        "schema": SCHEMA,
        "url": url,
        "healthy": healthy,
        "seconds": span.seconds,
        "verdicts": [verdict.to_json() for verdict in verdicts],
        "status": snapshot.to_json(),
    }
