"""`miractl doctor`: checks of this machine, its settings, a profile on it, a running server."""

import shutil
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import click

from miractl.doctor.check import Result, Status, Subject, examine
from miractl.doctor.checkpoint import Checkpoint, CheckpointFault
from miractl.doctor.registry import CHECKS, choose
from miractl.doctor.render import render
from miractl.doctor.report import FailOn, Report, to_json
from miractl.errors import UsageError
from miractl.output import Output, open_stdout, table
from miractl.probe import configuration, server, snapshot
from miractl.probe import port as ports
from miractl.profiles import Profile, list_profiles, load_profile

_FORMATS = ("table", "short", "json")
_EPILOG = """\
\b
Examples:
  miractl doctor                       check this machine
  miractl doctor --profile a10         and whether the profile fits it
  miractl doctor pcie.slot gpu.memory  two checks only
  miractl doctor --model ~/models/x    and whether the model is whole and fits
  miractl doctor --load pcie.gen       measure the link while copying to the GPU
  miractl doctor --disk ~/models       measure how fast the models' disk reads
  miractl doctor --format short        only what is not well

\b
Exit codes: 0 nothing failed, 1 a check failed, 2 wrong usage.
What each check means: docs/checks.md
"""


_IDS = {check.id for check in CHECKS}


@dataclass(frozen=True, slots=True)
class _Options:
    """What to examine besides the machine as it stands; the names are those of the options."""

    profile: str | None
    model: str | None
    server: str | None
    port: int | None
    load: bool
    disk: str | None

    @property
    def given(self) -> list[str]:
        """Names of the options that were given."""
        return [f.name for f in fields(self) if getattr(self, f.name) not in (None, False)]


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [check.id for check in CHECKS if check.id.startswith(incomplete)]


@click.command(epilog=_EPILOG)
@click.argument("ids", metavar="[CHECK]...", nargs=-1, shell_complete=_complete)
@click.option("--profile", metavar="NAME|FILE", help="Check the machine against a profile too.")
@click.option("--model", metavar="FOLDER", help="Check a model's files, and whether it fits, too.")
@click.option("--server", "url", metavar="URL", help="Check a running server too.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Check that this port is free too.",
)
@click.option("--load", is_flag=True, help="Measure the links too, while copying to the GPUs.")
@click.option(
    *("--disk", "disk"),
    is_flag=False,
    flag_value="",
    metavar="[PATH]",
    help="Measure how fast a disk reads too: at PATH, the model's, or the one here.",
)
@click.option("--list", "only_list", is_flag=True, help="List the checks and stop.")
@click.option(
    *("--format", "form"),
    type=click.Choice(_FORMATS),
    default="table",
    show_default=True,
    help="All checks, only what is not well, or JSON.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    *("--fail-on", "fail_on"),
    type=click.Choice(("warn", "fail", "never")),
    default="fail",
    show_default=True,
    help="The mildest verdict that ends with exit code 1.",
)
@click.option(
    *("--timeout", "patience"),
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="What each probe may take, instead of its own limit.",
)
def command(
    ids: tuple[str, ...],
    profile: str | None,
    model: str | None,
    url: str | None,
    port: int | None,
    load: bool,
    disk: str | None,
    only_list: bool,
    form: str,
    as_json: bool,
    fail_on: FailOn,
    patience: float | None,
) -> None:
    """Check this machine: what will work, what will not, and what to do about it."""
    form = "json" if as_json else form
    out = Output(json=form == "json")
    if only_list:
        _list(out)
        return
    if disk in _IDS and not Path(disk).exists():
        ids, disk = (*ids, disk), ""  # `--disk disk.read`: a check and no path was meant
    options = _Options(profile, model, url, port, load, disk)
    checks = choose(ids, options.given)
    subject = _subject(options, patience)
    if load and subject.machine.nvml and not subject.machine.nvml.gpus:
        out.note("--load: there is no GPU to copy to")
    results = tuple(examine(subject, checks, CHECKS))
    report = Report(subject.machine, _name(subject.profile), results, fail_on)
    _print(report, form, out)
    click.get_current_context().exit(int(report.exit_code))


def _subject(options: _Options, patience: float | None) -> Subject:
    """Probe and measure what the options ask for."""
    if options.disk and not Path(options.disk).exists():
        raise UsageError(f"--disk: {options.disk} does not exist")
    checkpoint = None if options.model is None else _checkpoint(options.model)
    profile = None if options.profile is None else load_profile(options.profile)
    return Subject(
        machine=snapshot.take(
            path=options.disk or options.model or ".",
            patience=patience,
            measure=snapshot.Measure(load=options.load, disk=options.disk is not None),
        ),
        profile=profile,
        profiles=() if profile is None else tuple(map(load_profile, list_profiles())),
        server=None if options.server is None else server.ask(options.server),
        port=None if options.port is None else ports.ask(options.port),
        configuration=configuration.read(),
        checkpoint=checkpoint,
    )


def _checkpoint(model: str) -> Checkpoint:
    """The model's files. Raises UsageError for what is not a folder here."""
    from miractl.checkpoint.inspection import inspect_folder
    from miractl.cli.serve import locate

    folder = Path(model).expanduser()
    found = inspect_folder(folder if folder.is_dir() else locate(model)[0])
    faults = tuple(CheckpointFault(f.text, f.remedy, f.fatal) for f in found.faults)
    name, files, geometry = found.folder.resolve().name, len(found.shards), found.geometry
    if geometry is None:
        return Checkpoint(name, files, faults, None, None, None)
    each = geometry.bytes_per_expert
    return Checkpoint(
        *(name, files, faults, geometry.non_expert_bytes, geometry.expert_bytes),
        layer_bytes=None if each is None else geometry.top_k * each,
    )


def _name(profile: Profile | None) -> str | None:
    return None if profile is None else profile.name


def _list(out: Output) -> None:
    rows = [(check.id, check.category, check.severity, check.title) for check in CHECKS]
    if out.is_json:
        keys = ("id", "category", "severity", "title")
        found = [dict(zip(keys, row, strict=True)) for row in rows]
        out.json({"schema": "miractl.checks/1", "checks": found})
    else:
        out.data(table(rows, ("check", "category", "at worst", "about")))


def _print(report: Report, form: str, out: Output) -> None:
    if form == "json":
        out.json(to_json(report))
        # Whoever reads only the exit code must not take ignorance for health.
        if ignorant := report.with_status(Status.UNKNOWN):
            out.note(f"unknown: {_ids(ignorant)}")
        return
    width = shutil.get_terminal_size().columns if open_stdout().isatty() else None
    plain = not out.use_unicode(sys.stdout)
    out.data(render(report, out, short=form == "short", plain=plain, width=width))


def _ids(results: list[Result]) -> str:
    return ", ".join(result.check.id for result in results)
