"""`miractl config`: the settings in force, and where each came from."""

from typing import Any

import click

from miractl import paths
from miractl.cli.options import (
    json_option,
    parameter_options,
    runtime_options,
    unresolved_settings,
)
from miractl.config import SETTINGS, given, resolve_parameters, resolve_runtime, resolve_settings
from miractl.output import Output, table
from miractl.parameters import PARAMETERS, RUNTIME
from miractl.profiles import load_profile


@click.group()
def command() -> None:
    """Show the settings in force, and where each came from.

    \b
    Example:
      miractl config show --origin
    """


@command.command()
@click.option("--origin", is_flag=True, help="Say where each value came from.")
@json_option
@unresolved_settings
@runtime_options
@parameter_options
def show(origin: bool, as_json: bool, parameters: dict[str, Any], **options: Any) -> None:
    """Show every setting as `serve` would see it with the same options.

    Options beat environment variables, these the configuration file, the file beats the profile,
    and the profile beats the defaults. OMP_NUM_THREADS beats all others for threads.

    \b
    Examples:
      miractl config show --origin
      miractl config show --profile a10 --context 4096 --cache-threshold 0.4 --json
    """
    options = given(**options)
    layout = {name: options.pop(name) for name in RUNTIME if name in options}
    settings = resolve_settings(options)
    profile = load_profile(settings["profile"].value)
    settings |= resolve_runtime(profile, layout) | resolve_parameters(profile, parameters)
    out = Output(json=as_json)
    if as_json:
        values = {n: {"value": s.value, "origin": s.origin} for n, s in settings.items()}
        out.json({"schema": "miractl.config/1", "settings": values})
        return
    known = SETTINGS | RUNTIME | PARAMETERS
    rows = [(name, known[name].show(s.value), s.origin) for name, s in settings.items()]
    columns = 3 if origin else 2
    out.data(table([row[:columns] for row in rows], ("setting", "value", "origin")[:columns]))


@command.command()
def path() -> None:
    """Print the path of the configuration file, whether or not it exists.

    \b
    Example:
      $EDITOR "$(miractl config path)"
    """
    Output().data(str(paths.config_file()))
