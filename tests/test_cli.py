"""The command line as a whole: help, exit codes, and one line for whatever goes wrong."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from miractl import __version__
from miractl.cli.main import COMMANDS, LazyGroup, cli
from miractl.errors import MiractlError


def helps(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Path and help of a command and of all commands below it."""
    yield ctx.command_path, command.get_help(ctx)
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None
            yield from helps(child, click.Context(child, parent=ctx, info_name=name))


def help_of(name: str) -> dict[str, str]:
    root = cli.make_context("miractl", [name], resilient_parsing=True)
    command = cli.get_command(root, name)
    assert command is not None
    return dict(helps(command, click.Context(command, parent=root, info_name=name)))


def failing(error: BaseException) -> click.Group:
    """A command line whose one command, `doctor`, raises `error`."""

    class Group(LazyGroup):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            def fail() -> None:
                raise error

            return click.Command("doctor", callback=fail)

    return Group("miractl", params=cli.params)


def test_help(golden: Callable[[str, str], None], miractl: Callable[..., Result]) -> None:
    result = miractl("--help")
    assert result.exit_code == 0
    golden("help/miractl.txt", result.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_commands(name: str, golden: Callable[[str, str], None]) -> None:
    texts = help_of(name)
    golden(f"help/{name}.txt", "\n\n".join(texts.values()) + "\n")
    for path, text in texts.items():
        assert "Example" in text, path
        assert "-h, --help" in text, path


def test_version(miractl: Callable[..., Result]) -> None:
    assert miractl("--version").stdout == f"miractl {__version__}\n"


def test_no_command_shows_the_help_on_stderr(miractl: Callable[..., Result]) -> None:
    result = miractl()
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: miractl")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["serv"], "error: no command 'serv'; did you mean 'serve'?\nhint:  miractl --help\n"),
        (["xyz"], "error: no command 'xyz'\nhint:  miractl --help\n"),
        (["--nocolor"], "error: no such option '--nocolor'. Did you mean '--no-color'?"),
        (["profiles", "shwo"], "error: no such command 'shwo'"),
        (["profiles", "show"], "error: missing argument 'NAME|FILE'\nhint:  miractl profiles show"),
        (["completion", "tcsh"], "error: shell: 'tcsh' is not one of"),
    ],
)
def test_usage_errors(args: list[str], expected: str, miractl: Callable[..., Result]) -> None:
    result = miractl(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(expected)
    assert len(result.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (MiractlError("it broke", hint="try this"), 1, "error: it broke\nhint:  try this\n"),
        (KeyboardInterrupt(), 130, "\n"),
        (click.exceptions.Exit(1), 1, ""),
        (FileNotFoundError(2, "No such file", "x.csv"), 1, "error: x.csv: No such file\n"),
        (OSError(28, "No space left on device"), 1, "error: No space left on device\n"),
        (click.ClickException("Bad.\n"), 1, "error: Bad.\n\n"),
    ],
)
def test_expected_failures(error: BaseException, code: int, expected: str) -> None:
    result = CliRunner().invoke(failing(error), ["doctor"])
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", expected)


def test_unexpected_failure_is_one_line_with_the_way_to_a_traceback() -> None:
    group = failing(KeyError("a\nb"))
    result = CliRunner().invoke(group, ["doctor"])
    assert result.exit_code == 1
    line, hint = result.stderr.splitlines()
    assert line == r"error: internal error: KeyError: 'a\nb'"
    assert hint.startswith("hint:  run again with --debug: miractl --debug")
    result = CliRunner().invoke(group, ["--debug", "doctor"])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_a_bad_value_of_a_plain_option_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    option = click.Option(["--level"], type=int, envvar="MIRACTL_LEVEL")
    command = click.Command("doctor", params=[option], callback=lambda level: None)
    monkeypatch.setattr(LazyGroup, "get_command", lambda *args: command)
    monkeypatch.setenv("MIRACTL_LEVEL", "abc")
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: MIRACTL_LEVEL: 'abc' is not a valid integer\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, miractl: Callable[..., Result]) -> None:
    result = miractl("completion", shell)
    assert result.exit_code == 0
    assert "_MIRACTL_COMPLETE" in result.stdout


def complete(*words: str) -> list[str]:
    env = os.environ | {
        "_MIRACTL_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["miractl", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "miractl"], env=env, capture_output=True, text=True, check=True
    )
    return [line.split(",")[1] for line in done.stdout.splitlines() if line]


def test_completion_offers_commands_and_profiles() -> None:
    assert complete("com") == ["completion"]
    assert complete("config", "show", "--profile", "a1") == ["a10", "a100"]
    assert complete("profiles", "show", "rtx") == ["rtx3090", "rtx4090"]
    assert complete("profiles", "check", "l4") == ["l4", "l40s"]
    assert complete("plan", "mix") == ["mix", "Mixtral-8x7B"]  # the first stands for folders


def test_completion_offers_what_settings_take() -> None:
    assert complete("serve", "--device", "c") == ["cpu", "cuda:0"]
    assert complete("serve", "--log-format", "") == ["text", "json"]
    assert complete("plan", "--set", "dma") == ["dma_buffer_size_mb="]
    assert complete("plan", "--set", "prefetch=") == ["prefetch=true", "prefetch=false"]
    assert complete("plan", "--set", "unknown=") == []


def test_reader_that_has_gone_is_no_error() -> None:
    code = "from miractl.output import Output; import miractl.cli.main as m; import click\n"
    code += "m.LazyGroup.get_command = lambda *a: click.Command('doctor', callback=lambda: "
    code += "[Output().data('x' * 9999) for _ in range(99)])\n"
    code += "m.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == (b"", 1)
    process.stderr.close()


@pytest.mark.parametrize(
    "command",
    [["profiles", "list"], ["heat", "export", "-o", "-"], ["env"], ["doctor", "--list", "--json"]],
)
def test_closed_standard_output_is_said(command: list[str]) -> None:
    run = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "miractl", *command]
    done = subprocess.run(run, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "error: standard output is closed\nhint:  without >&-\n",
    )


def test_ctrl_c_while_it_is_imported() -> None:
    code = (
        "import sys; from miractl import __main__\n"
        "class Interrupt:\n"
        "    def find_spec(self, *args): raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "__main__.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--device", "gpu"], "unknown device 'gpu'"),
        (["--device", "cuda:x"], "unknown device 'cuda:x'"),
        (["--expert-memory", "0"], "'0' needs a unit"),
        (["--expert-memory", "-1"], "'-1' is not a size"),
        (["--expert-memory", "101%"], "'101%' is not a share"),
        (["--expert-memory", "nan%"], "'nan%' is not a share"),
        (["--expert-memory", "0GiB"], "'0GiB' is not above 0"),
        (["--expert-memory", "1e30GiB"], "'1e30GiB' is not above 0 and up to 1024 TiB"),
        (["--context", "99999999999"], "context 99999999999 is not in 16..10000000 tokens"),
    ],
)
def test_serve_checks_its_options_before_it_listens(
    options: list[str], says: str, miractl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miractl.cli.serve._serve", lambda *args: pytest.fail("served"))
    result = miractl("serve", *options)
    assert result.exit_code == 2
    assert says in result.stderr.splitlines()[0]


def test_an_export_from_a_deleted_folder_names_the_file(
    miractl: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = miractl("heat", "export", "-o", "h.csv")
    monkeypatch.chdir(tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: h.csv: the folder that this command runs in")
