"""Prompts from a text file: its paragraphs."""

from pathlib import Path
from typing import Any

import click

from miractl.cli.textfile import read_text
from miractl.errors import UsageError


def read_prompts(path: Path) -> tuple[str, ...]:
    """The paragraphs of a file, which blank lines part. Raises UsageError without one."""
    text = read_text(path, "prompts")
    found = tuple(part.strip("\n") for part in text.split("\n\n") if part.strip())
    if not found:
        raise UsageError(f"prompts {path}: there is no text in it")
    return found


def _read(ctx: click.Context, param: click.Parameter, value: Path | None) -> Any:
    return None if value is None else read_prompts(value)


prompts_option = click.option(
    "--prompts",
    metavar="FILE",
    type=click.Path(path_type=Path),
    callback=_read,
    help="Text whose paragraphs are the prompts, each up to the length of a prompt.",
)
