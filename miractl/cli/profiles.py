"""`miractl profiles`: the profiles, the source of every value they set, and what is wrong."""

from typing import Any

import click

from miractl.cli.options import complete_profile, json_option
from miractl.errors import ExitCode, UsageError
from miractl.output import Output, table
from miractl.parameters import PARAMETERS, RUNTIME, SECTIONS
from miractl.profiles import (
    Hardware,
    Profile,
    list_profiles,
    load_profile,
    profile_path,
    read_profile,
)

ALL = PARAMETERS | RUNTIME


@click.group()
def command() -> None:
    """List the profiles and show what they set, and why.

    \b
    Example:
      miractl profiles show a10
    """


@command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the bundled profiles.

    \b
    Example:
      miractl profiles list
    """
    profiles = [load_profile(name) for name in list_profiles()]
    out = Output(json=as_json)
    if as_json:
        out.json({"schema": "miractl.profiles/1", "profiles": [_facts(p) for p in profiles]})
        return
    out.data(table([(p.name, p.description) for p in profiles], ("profile", "for")))


@command.command()
@click.argument("profile", metavar="NAME|FILE", shell_complete=complete_profile)
@json_option
def show(profile: str, as_json: bool) -> None:
    """Show all values under a profile, each with the source of its value.

    \b
    Examples:
      miractl profiles show a10
      miractl profiles show ./mine.yaml --json
    """
    loaded = load_profile(profile)
    out = Output(json=as_json)
    if as_json:
        out.json({"schema": "miractl.profile/1", **_facts(loaded)})
        return
    out.data(f"{loaded.name}: {loaded.description}" if loaded.description else loaded.name)
    if hardware := _hardware_line(loaded.hardware):
        out.data(hardware)
    out.data("")
    rows = [
        (name, ALL[name].show(value), source) for name, (value, source) in _values(loaded).items()
    ]
    out.data(table(rows, ("setting", "value", "source")))


@command.command()
@click.argument("profile", metavar="NAME|FILE", shell_complete=complete_profile)
@json_option
def check(profile: str, as_json: bool) -> None:
    """Say everything that is wrong with a profile, one line each.

    Exits with 1 if anything is.

    \b
    Examples:
      miractl profiles check ./mine.yaml
      miractl profiles check a10
    """
    file = profile_path(profile)
    if not file.is_file():
        raise UsageError(f"no profile {profile}: there is no such file")
    try:
        found, problems = read_profile(file)
    except UsageError as error:  # no profile at all: its syntax ends the reading
        found, problems = Profile(file.stem, "", {}), [error.message]
    out = Output(json=as_json)
    if as_json:
        out.json({"schema": "miractl.profile-check/1", "file": str(file), "problems": problems})
    elif problems:
        out.data("\n".join(problems))
    else:
        out.data(f"{file}: sets {len(found.values)} of {len(ALL)} values, all is well")
    click.get_current_context().exit(int(ExitCode.FAILED if problems else ExitCode.OK))


def _values(profile: Profile) -> dict[str, tuple[Any, str]]:
    """Value and source of everything: what the profile leaves alone has its default."""
    return {
        name: (profile.values[name], profile.sources.get(name) or "no source given")
        if name in profile.values
        else (parameter.default, "default")
        for name, parameter in ALL.items()
    }


def _facts(profile: Profile) -> dict[str, Any]:
    hardware, values = profile.hardware, _values(profile)
    return {
        "name": profile.name,
        "description": profile.description,
        "hardware": {
            "gpu_names": list(hardware.gpu_names),
            "memory_bytes": list(hardware.memory_bytes),
            "pcie_generation": hardware.pcie_generation,
            "pcie_lanes": hardware.pcie_lanes,
        },
        **{
            section: {n: {"value": values[n][0], "source": values[n][1]} for n in known}
            for section, known in SECTIONS.items()
        },
    }


def _hardware_line(hardware: Hardware) -> str:
    parts = [
        ", ".join(hardware.gpu_names),
        # As sold: powers of 1000.
        " or ".join(f"{size / 1e9:.0f} GB" for size in hardware.memory_bytes),
        f"PCIe {hardware.pcie_generation}.0 x{hardware.pcie_lanes}" if hardware.pcie_lanes else "",
    ]
    return " · ".join(part for part in parts if part)
