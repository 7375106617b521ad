"""`miractl doctor`: checks of this machine, of a profile on it, of a running server."""

import shutil
import sys

import click

from miractl.doctor.check import Result, Status, Subject, examine
from miractl.doctor.registry import CHECKS, choose
from miractl.doctor.render import render
from miractl.doctor.report import FailOn, Report, to_json
from miractl.output import Output, table
from miractl.probe import server, snapshot
from miractl.profiles import Profile, list_profiles, load_profile

_FORMATS = ("table", "short", "json")
_EPILOG = """\
\b
Examples:
  miractl doctor                       check this machine
  miractl doctor --profile a10         and whether the profile fits it
  miractl doctor pcie.slot gpu.memory  two checks only
  miractl doctor --format short        only what is not well

\b
Exit codes: 0 nothing failed, 1 a check failed, 2 wrong usage.
What each check means: docs/checks.md
"""


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [check.id for check in CHECKS if check.id.startswith(incomplete)]


@click.command(epilog=_EPILOG)
@click.argument("ids", metavar="[CHECK]...", nargs=-1, shell_complete=_complete)
@click.option("--profile", metavar="NAME|FILE", help="Check the machine against a profile too.")
@click.option("--server", "url", metavar="URL", help="Check a running server too.")
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
    url: str | None,
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
    given = [name for name, value in (("profile", profile), ("server", url)) if value is not None]
    checks = choose(ids, given)
    loaded = None if profile is None else load_profile(profile)
    subject = Subject(
        machine=snapshot.take(patience=patience),
        profile=loaded,
        profiles=() if loaded is None else tuple(map(load_profile, list_profiles())),
        server=None if url is None else server.ask(url),
    )
    results = tuple(examine(subject, checks, CHECKS))
    report = Report(subject.machine, _name(loaded), results, fail_on)
    _print(report, form, out)
    click.get_current_context().exit(int(report.exit_code))


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
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    plain = not out.use_unicode(sys.stdout)
    out.data(render(report, out, short=form == "short", plain=plain, width=width))


def _ids(results: list[Result]) -> str:
    return ", ".join(result.check.id for result in results)
