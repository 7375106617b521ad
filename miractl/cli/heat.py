"""`miractl heat`: how hot each expert is, as a file, and which ones nobody uses."""

import os
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from miractl.cli.options import json_option, url_option
from miractl.errors import UsageError
from miractl.outfile import check_target
from miractl.output import Output, open_stdout, table
from miractl.telemetry.client import Client
from miractl.telemetry.experts import ExpertTable
from miractl.telemetry.heat_export import RENDERERS, ColdLayer, cold, export, iso_time
from miractl.units import format_seconds, format_share

F = TypeVar("F", bound=Callable[..., Any])
TOKEN_SECONDS = 0.05  # of a recording without times


def source_options(f: F) -> F:
    """`--url` of a server, or `--from` of a recording, passed as `url` and `trace`."""
    option = click.option(
        "--from",
        "trace",
        metavar="TRACE",
        help="A recorded trace instead of a running server: heat at its end.",
    )
    return option(url_option(f))


@click.group()
def command() -> None:
    """Export how hot each expert of the running server, or of a recording, is.

    \b
    Examples:
      miractl heat export -o heat.csv
      miractl heat export --from trace.npz -o heat.html
      miractl heat cold
    """


@command.command("export")
@click.option(
    "-o", "--output", required=True, metavar="FILE", help="File to write; - for standard output."
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(list(RENDERERS)),
    help="Format; from the file's name by default, csv when that says nothing.",
)
@source_options
def export_command(output: str, kind: str | None, url: str, trace: str | None) -> None:
    """Write one row for every expert, used or not: CSV, an HTML page or a PNG picture.

    \b
    Columns: timestamp, layer (the model's own index), expert, heat (0 to 1, now), resident,
    activations (tokens), hits, misses, prefetched, prefetch_used. What a trace does not tell,
    which is all but layer, expert, heat and activations, is empty.

    \b
    Examples:
      miractl heat export -o heat.csv
      miractl heat export -o heat.html
      miractl heat export --from trace.npz -o heat.csv
      miractl heat export -o - | sort -t, -k4 -rn | head
    """
    if not output:
        raise UsageError("-o needs the name of a file", hint="miractl heat export -o heat.csv")
    if trace is not None and Path(output).absolute() == Path(trace).absolute():
        raise UsageError(f"-o and --from both name {output}", hint="-o heat.csv")
    if output == "-":
        open_stdout()
    else:
        _check_file(Path(output))
    suffix = Path(output).suffix.lower().removeprefix(".")
    experts = _experts(url, trace)
    export(experts, output, kind or (suffix if suffix in RENDERERS else "csv"))
    where = "standard output" if output == "-" else output
    Output().note(f"wrote {len(experts.rows)} experts of {experts.model} to {where}")


def _check_file(path: Path) -> None:
    """Raise UsageError when nothing can be written at `path`."""
    try:
        os.path.realpath(path)
    except FileNotFoundError:
        raise UsageError(
            f"{path}: the folder that this command runs in has been deleted", hint="cd to another"
        ) from None
    check_target(path)


def _experts(url: str, trace: str | None) -> ExpertTable:
    """Of the server, or of a recording at its end."""
    if trace is None:
        return Client(url).experts()
    if click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE:
        raise UsageError("--from and --url say two sources", hint="leave one of them out")
    from miractl.simulate.heated import heated
    from miractl.telemetry.trace import read_trace

    path = Path(trace)
    recorded = read_trace(path)
    if recorded.gate_seconds is None:
        spent = format_seconds(TOKEN_SECONDS)
        Output().note(f"{trace} has no times: heat takes a step every {spent}")
    return heated(recorded, path.stat().st_mtime, TOKEN_SECONDS)


@command.command("cold")
@source_options
@json_option
def cold_command(url: str, trace: str | None, as_json: bool) -> None:
    """List the experts that no token was routed to since the start: candidates for pruning.

    With --from, those that no token of a recording was routed to: record prompts of one kind to
    learn what that kind does without.

    \b
    Examples:
      miractl heat cold
      miractl heat cold --from code.npz
    """
    experts = _experts(url, trace)
    layers = cold(experts.rows)
    output = Output(json=as_json)
    never, total = sum(len(row.experts) for row in layers), len(experts.rows)
    if as_json:
        output.json(
            {
                "schema": "miractl.cold/1",
                "timestamp": iso_time(experts.timestamp),
                "model": experts.model,
                "never_used": never,
                "experts": total,
                "share": never / total if total else None,
                "layers": [row.to_json() for row in layers],
            }
        )
        return
    rows = [_row(layer) for layer in layers]
    output.data(table(rows, ("layer", "activations", "never used", "share", "experts")))
    output.data("")
    share = format_share(never / total if total else None)
    output.data(f"{never} of {total} experts ({share}) were never used.")
    if never:
        output.note("This rests on the traffic so far: other prompts may use other experts.")


def _row(layer: ColdLayer) -> tuple[int, int, str, str, str]:
    return (
        layer.layer,
        layer.activations,
        f"{len(layer.experts)} of {layer.of}",
        format_share(layer.share),
        ranges(layer.experts),
    )


def ranges(numbers: tuple[int, ...]) -> str:
    """`0-3 7 9-10` for ascending numbers, `-` for none."""
    runs = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    return " ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ends) or "-"
