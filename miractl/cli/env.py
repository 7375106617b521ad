"""`miractl env`: this machine in a block to paste into a bug report, without what is private."""

import click

from miractl.cli.options import json_option
from miractl.doctor.bugreport import Redactor, block
from miractl.output import Output
from miractl.probe import codec, snapshot


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Print this machine and its software for a bug report.

    Home folders, the host's name, UUIDs, ids and secrets are replaced. The JSON form can stand in
    for the machine: MIRACTL_FAKE_HW=machine.json miractl doctor.

    \b
    Examples:
      miractl env
      miractl env --json > machine.json
    """
    redacted = Redactor().tree(codec.to_json(snapshot.take()))
    out = Output(json=as_json)
    if as_json:
        out.json(redacted)
        return
    out.data(block(codec.from_json(redacted)))
