"""`miractl top`: the live screen, and its numbers as text or JSON."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from miractl.cli.options import url_option
from miractl.errors import MiractlError, UsageError
from miractl.output import Output, use_unicode
from miractl.telemetry.client import Client
from miractl.telemetry.logbook import Logbook, read_logbook
from miractl.telemetry.snapshot import Snapshot
from miractl.telemetry.span import restarted

if TYPE_CHECKING:
    from miractl.top.history import Reading
    from miractl.top.playback import Playback

SHORTEST_INTERVAL = 0.25


def _interval(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not SHORTEST_INTERVAL <= value <= 3600:
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
    metavar="SECONDS",
    callback=_interval,
    help="Seconds between two questions, at least 0.25; 1 by default, or as recorded.",
)
@click.option("--once", is_flag=True, help="Print the numbers once as text and end.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a line; once by default."
)
@click.option("--loop", type=click.IntRange(min=1), metavar="N", help="Print N times and end.")
@click.option("--record", metavar="FILE", help="Keep each answer of the server, a line each.")
@click.option(
    "--replay",
    metavar="FILE",
    help="Show a recording instead of a server; as text or JSON all of it, without waiting.",
)
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters alone.")
@click.pass_context
def command(
    ctx: click.Context,
    url: str,
    interval: float | None,
    once: bool,
    as_json: bool,
    loop: int | None,
    record: str | None,
    replay: str | None,
    ascii_only: bool,
) -> None:
    """Watch the running server live.

    \b
    Examples:
      miractl top
      miractl top --once
      miractl top --loop 60 --interval 5 --json > minutes.jsonl
      miractl top --record night.jsonl --interval 60
      miractl top --replay night.jsonl --interval 0.25
    """
    if once and loop:
        raise UsageError("--once and --loop exclude each other", hint="--loop 1 is --once")
    unicode = not ascii_only and use_unicode(sys.stdout)
    snapshots = [] if replay is None else read_logbook(Path(replay), Output().warn)
    on_screen = not (once or as_json or loop)
    if on_screen and not _has_terminal():
        raise UsageError("needs a terminal, use --once or --json", hint="miractl top --once")
    if replay is not None:
        given = ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE
        other = "--record" if record is not None else "--url" if given else None
        if other:
            raise UsageError(f"--replay and {other} exclude each other", hint="leave one out")
        _replay(snapshots, interval, once, loop, as_json, unicode)
        return
    with nullcontext() if record is None else closing(Logbook(Path(record))) as logbook:
        asked = _Asked(Client(url).status, logbook)
        if on_screen:
            _watch(asked, interval or 1.0, unicode)
        else:
            _print(_answers(asked, interval or 1.0, loop or 1), as_json, unicode)
        asked.complain()


@dataclass(slots=True)
class _Asked:
    """The server's answers, kept on the way. A screen goes on when they can be kept no longer."""

    fetch: Callable[[], Snapshot]
    logbook: Logbook | None
    failed: MiractlError | None = None

    def __call__(self) -> Snapshot:
        snapshot = self.fetch()
        if self.logbook is not None and self.failed is None:
            try:
                self.logbook.add(snapshot)
            except MiractlError as error:
                self.failed = error
        return snapshot

    def complain(self) -> None:
        """Raise what ended the recording, and say how long it is."""
        if self.failed is not None:
            raise self.failed
        if self.logbook is not None:
            Output().note(f"recorded {self.logbook.count} snapshots in {self.logbook.path}")


def _replay(
    snapshots: list[Snapshot],
    interval: float | None,
    once: bool,
    loop: int | None,
    as_json: bool,
    unicode: bool,
) -> None:
    """On the screen, or all differences of the recording; the last one with --once."""
    from miractl.top.playback import Playback

    if once or loop or as_json:
        kept = snapshots[-2:] if once else snapshots[: loop + 1 if loop else None]
        _print(kept, as_json, unicode)
        return
    playback = Playback(snapshots)
    pace = max(playback.interval, SHORTEST_INTERVAL) if interval is None else interval
    _watch(playback.status, pace, unicode, playback)


def _watch(
    fetch: Callable[[], Snapshot],
    interval: float,
    unicode: bool,
    playback: "Playback | None" = None,
) -> None:
    from miractl.top.app import TopApp

    TopApp(fetch, interval, unicode=unicode, playback=playback).run()


def _has_terminal() -> bool:
    # textual draws on stderr, so all three have to be the terminal.
    streams = (sys.stdin, sys.stdout, sys.stderr)
    known = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return known and all(stream is not None and stream.isatty() for stream in streams)


def _print(snapshots: Iterable[Snapshot], as_json: bool, unicode: bool) -> None:
    """The numbers between each two snapshots."""
    from miractl.top.glyphs import ASCII, UNICODE
    from miractl.top.report import report_json, report_text

    output = Output(json=as_json, unicode=unicode)
    for index, reading in enumerate(_readings(snapshots)):
        if as_json:
            output.data(json.dumps(report_json(reading), allow_nan=False))
        else:
            output.data("\n" * bool(index) + report_text(reading, UNICODE if unicode else ASCII))
        sys.stdout.flush()


def _readings(snapshots: Iterable[Snapshot]) -> "Iterator[Reading]":
    """Each from two in a row, or from one alone; a restart in between leaves only the new one."""
    from miractl.top.history import read

    old: Snapshot | None = None
    told = False
    for new in snapshots:
        if old is not None:
            told = True
            yield read(None if restarted(old, new) else old, new)
        old = new
    if old is not None and not told:
        yield read(None, old)


def _answers(fetch: Callable[[], Snapshot], interval: float, times: int) -> Iterator[Snapshot]:
    """One, and `times` more, an interval apart each."""
    yield fetch()
    for _ in range(times):
        time.sleep(interval)
        yield fetch()
