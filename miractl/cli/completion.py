"""`miractl completion`: the script that makes a shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

from miractl.output import Output


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
    Examples:
      miractl completion bash > ~/.local/share/bash-completion/completions/miractl
      miractl completion zsh > "${fpath[1]}/_miractl"
      miractl completion fish > ~/.config/fish/completions/miractl.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    script = kind(ctx.find_root().command, {}, "miractl", "_MIRACTL_COMPLETE").source()
    Output().data(script.rstrip())
