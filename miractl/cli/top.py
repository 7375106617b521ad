"""`miractl top`: the live screen, and its numbers as text or JSON."""

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from miractl.cli.options import url_option
from miractl.errors import UsageError
from miractl.output import Output, use_unicode
from miractl.telemetry.client import Client
from miractl.telemetry.span import restarted

if TYPE_CHECKING:
    from miractl.top.history import Reading

SHORTEST_INTERVAL = 0.25


def _interval(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not SHORTEST_INTERVAL <= value <= 3600:
        raise click.BadParameter(
            f"got {value:g} but expected {SHORTEST_INTERVAL:g} to 3600 seconds: "
            "asking more often disturbs what is measured"
        )
    return value


@click.command()
@url_option
@click.option(
    "--interval",
    type=float,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    callback=_interval,
    help="Seconds between two questions, at least 0.25.",
)
@click.option("--once", is_flag=True, help="Print the numbers once as text and end.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a line; once by default."
)
@click.option("--loop", type=click.IntRange(min=1), metavar="N", help="Print N times and end.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters alone.")
def command(
    url: str, interval: float, once: bool, as_json: bool, loop: int | None, ascii_only: bool
) -> None:
    """Watch the running server live.

    \b
    Examples:
      miractl top
      miractl top --once
      miractl top --loop 60 --interval 5 --json > minutes.jsonl
    """
    if once and loop:
        raise UsageError("--once and --loop exclude each other", hint="--loop 1 is --once")
    client = Client(url)
    unicode = not ascii_only and use_unicode(sys.stdout)
    if once or as_json or loop:
        _print(client, interval, loop or 1, as_json, unicode)
        return
    if not _has_terminal():
        raise UsageError("needs a terminal, use --once or --json", hint="miractl top --once")
    from miractl.top.app import TopApp

    TopApp(client.status, interval, unicode=unicode).run()


def _has_terminal() -> bool:
    # textual draws on stderr, so all three have to be the terminal.
    streams = (sys.stdin, sys.stdout, sys.stderr)
    known = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return known and all(stream is not None and stream.isatty() for stream in streams)


def _print(client: Client, interval: float, times: int, as_json: bool, unicode: bool) -> None:
    """The numbers of `times` readings, each over one interval."""
    from miractl.top.glyphs import ASCII, UNICODE
    from miractl.top.report import report_json, report_text

    output = Output(json=as_json, unicode=unicode)
    for index, reading in enumerate(_readings(client, interval, times)):
        if as_json:
            output.data(json.dumps(report_json(reading), allow_nan=False))
        else:
            output.data("\n" * bool(index) + report_text(reading, UNICODE if unicode else ASCII))
        sys.stdout.flush()


def _readings(client: Client, interval: float, times: int) -> "Iterator[Reading]":
    """Each from two snapshots one interval apart; a restart in between leaves only the new one."""
    from miractl.top.history import read

    old = client.status()
    for _ in range(times):
        time.sleep(interval)
        new = client.status()
        yield read(None if restarted(old, new) else old, new)
        old = new
