"""The entry point: a group that knows its commands by name and imports one only when it is used.

`miractl --help` therefore costs no more than click itself. Whatever a command raises ends here as
one line on stderr and one of the four exit codes.
"""

import functools
import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click

from miractl import __version__
from miractl.errors import ExitCode, MiractlError, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Each is `command` in the module of the same name in this folder.
COMMANDS = {
    "serve": "Serve a model over an OpenAI-compatible HTTP API.",
    "inspect": "Say what a checkpoint is, and what is missing or damaged.",
    "pack": "Pack a model: one contiguous, aligned record an expert.",
    "doctor": "Check what will work on this machine, and what to do.",
    "plan": "Say whether a model runs here, with which settings, how fast.",
    "replay": "Say what cache policies would have hit on recorded routing.",
    "status": "Say how the running server is doing.",
    "top": "Watch the running server live.",
    "heat": "Export how hot each expert of the running server is.",
    "explain": "Say where the time of the last tokens went.",
    "verify": "Prove that outputs equal those of the stock model.",
    "bench": "Measure speed, link, disk, and what packing loses.",
    "tune": "Find the fastest settings here by measuring; write a profile.",
    "profiles": "List the profiles and show what they set, and why.",
    "config": "Show the settings in force, and where each came from.",
    "env": "Print facts to paste into a bug report.",
    "completion": "Print the completion script for a shell.",
}
EPILOG = """\
\b
Examples:
  miractl serve --profile a10        serve the bundled demo model
  miractl doctor                     check this machine
  miractl status                     how the server is doing
  miractl heat export -o heat.csv    which experts are hot

\b
Exit codes: 0 ok, 1 failed, 2 wrong usage, 130 interrupted.
"""


class LazyGroup(click.Group):
    """The commands of COMMANDS, imported when one of them runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the registry."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"miractl.cli.{cmd_name}")
        return cast("click.Command", module.command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but with the nearest name of the registry."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from miractl.suggest import nearest

            raise UsageError(f"no command {name!r}{nearest(name, COMMANDS)}", hint="miractl --help")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the registry."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete from the registry."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(n, help=h) for n, h in COMMANDS.items() if n.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run, and exit with the code that the outcome calls for."""
        extra["standalone_mode"] = False
        run = functools.partial(super().main, *args, **extra)
        if not standalone_mode:
            return run()
        sys.exit(_guarded(run))


def _guarded(run: Callable[[], Any]) -> int:
    """Run a command line and turn what it raises into a line on stderr and an exit code."""
    try:
        result = run()
        if sys.stdout is not None:
            sys.stdout.flush()
        # With standalone_mode=False click returns the code of ctx.exit().
        return int(result) if isinstance(result, int) else ExitCode.OK
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return ExitCode.USAGE
    except click.Abort:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader has gone: nothing to say, and nothing to flush at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except Exception as error:
        return report(error)


def report(error: Exception) -> int:
    """Say on stderr what went wrong; the exit code for it."""
    from miractl.output import Output

    if os.environ.get("MIRACTL_DEBUG"):
        traceback.print_exception(error)
    told = _told(error)
    Output().error(told)
    return told.exit_code


def _told(error: Exception) -> MiractlError:
    """The error as one line with a hint."""
    if isinstance(error, MiractlError):
        return error
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "miractl"
        return UsageError(_usage_message(error), hint=f"{path} --help")
    if isinstance(error, click.ClickException):
        return MiractlError(error.format_message())
    if isinstance(error, OSError) and error.strerror:
        return MiractlError(
            f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        )
    text = " ".join(f"internal error: {type(error).__name__}: {error}".split())
    again = shlex.join(["miractl", "--debug", *sys.argv[1:]])
    return MiractlError(text, hint=f"run again with --debug: {again}")


def _usage_message(error: click.UsageError) -> str:
    """Click's words in one line; a bad value names its option, or the variable it came from."""
    text = error.format_message()
    text = text[:1].lower() + text[1:]
    if type(error) is click.BadParameter and error.ctx and (param := error.param):
        source = error.ctx.get_parameter_source(str(param.name))
        from_env = source is click.core.ParameterSource.ENVIRONMENT
        is_option = isinstance(param, click.Option)
        given = param.envvar if from_env else "/".join(param.opts) if is_option else param.metavar
        text = f"{given or param.name}: {error.message}"
    return " ".join(text.split()).rstrip(".")


def _set_variable(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    """A flag that is a well-known variable, so that libraries and child processes heed it too."""

    def callback(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value:
            os.environ[name] = "1"

    return callback


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_set_variable("MIRACTL_DEBUG"),
    help="Show the traceback of an error.  [env var: MIRACTL_DEBUG]",
)
@click.option(
    "--no-color",
    is_flag=True,
    expose_value=False,
    callback=_set_variable("NO_COLOR"),
    help="Print without colour.  [env var: NO_COLOR]",
)
@click.version_option(__version__, prog_name="miractl", message="%(prog)s %(version)s")
def cli() -> None:
    """Run, see and plan Mixture-of-Experts models that do not fit their GPU."""


def main() -> None:
    """The `miractl` command."""
    cli.main(prog_name="miractl")
