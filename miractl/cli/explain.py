"""`miractl explain`: where the time of the last tokens went, and what bounds it."""

import sys
from dataclasses import asdict
from typing import Any

import click

from miractl.cli.options import json_option, url_option
from miractl.errors import MiractlError
from miractl.output import Output, table
from miractl.telemetry.client import Client
from miractl.telemetry.timeline import PARTS, Account, Timeline, bounds, split
from miractl.telemetry.verdict import verdict
from miractl.units import format_bytes, format_rate, format_seconds, format_share

SCHEMA = "miractl.explain/1"
MOST_STEPS = 4096
BAR = 24  # columns of the whole step


@click.command()
@url_option
@click.option(
    "--last",
    type=click.IntRange(1, MOST_STEPS),
    default=64,
    show_default=True,
    metavar="N",
    help="Steps to look at: passes through the model.",
)
@json_option
def command(url: str, last: int, as_json: bool) -> None:
    """Say where the time of the last tokens went, and which resource binds.

    A step is one pass through the model. Its time runs from the end of the step before, where the
    same requests went on. Parts follow each other and add up; copies run beside them.

    \b
    Examples:
      miractl explain
      miractl explain --last 1 --json
    """
    client, output = Client(url), Output(json=as_json)
    timeline = client.timeline(last)
    if not timeline.steps:
        raise MiractlError(f"{client.url} has run no step yet", hint="send it a request")
    prompts, decoding = split(timeline.steps)
    accounts = {"decode": decoding, "prompt": prompts}
    found = {name: Account.of(steps) for name, steps in accounts.items() if steps}
    if as_json:
        output.json(_facts(timeline, found))
        return
    machine = timeline.machine
    output.data(
        f"{timeline.model} · {machine.device} · {_counted(machine.threads, 'thread')} · "
        f"last {_counted(len(timeline.steps), 'step')}"
    )
    for name, account in found.items():
        output.data("")
        output.data(_account_lines(name, account, timeline, output))


def _account_lines(name: str, account: Account, timeline: Timeline, output: Output) -> str:
    steps, moved = account.steps, account.moved
    what = {"decode": "of one token a sequence", "prompt": "with prompts"}[name]
    each = account.seconds / steps
    lines = [
        output.style(
            f"{_counted(steps, 'step')} {what}: {_counted(account.tokens, 'token')}", "bold"
        )
        + f", {format_seconds(each)} a step, {account.tokens / account.seconds:.1f} tokens/s",
        table(_rows(account, output), ("part", "a step", "share", "", "what it is")),
        f"{moved.hits} of {moved.hits + moved.misses} experts were there, {moved.late} came late;"
        f" brought {_brought(account)}",
        f"transfers under way {format_seconds(moved.copy_seconds / steps)} a step",
        table(_bound_rows(account, timeline), ("resource", "needs a step", "at", "takes", "share")),
        verdict(account, timeline.machine),
    ]
    return "\n".join(lines)


def _rows(account: Account, output: Output) -> list[tuple[str, ...]]:
    parts = {**account.parts, "unmeasured": account.unmeasured}
    mark = "█" if output.use_unicode(sys.stdout) else "#"
    return [
        (
            *(part, format_seconds(max(0.0, seconds) / account.steps)),
            format_share(max(0.0, seconds) / account.seconds),
            mark * round(BAR * max(0.0, seconds) / account.seconds),
            PARTS.get(part, "what no part accounts for"),
        )
        for part, seconds in parts.items()
    ]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("s" if count != 1 else "")


def _brought(account: Account) -> str:
    moved = account.moved
    texts = [
        f"{format_bytes(amount / account.steps)} a step from {place}"
        for amount, place in ((moved.disk_bytes, "files"), (moved.link_bytes, "the host"))
        if amount
    ]
    if account.os_bytes is not None:
        texts.append(f"{format_bytes(account.os_bytes / account.steps)} from storage by the kernel")
    return ", ".join(texts) or "nothing"


def _bound_rows(account: Account, timeline: Timeline) -> list[tuple[str, ...]]:
    return [
        (
            f"{bound.resource}: {bound.what}",
            format_bytes(bound.bytes / account.steps),
            format_rate(bound.rate),
            format_seconds(bound.seconds / account.steps),
            format_share(bound.seconds / account.seconds),
        )
        for bound in bounds(account, timeline.machine)
    ]


def _facts(timeline: Timeline, found: dict[str, Account]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": timeline.model,
        "machine": asdict(timeline.machine),
        "accounts": {
            name: {
                **asdict(account),
                "unmeasured": account.unmeasured,
                "bounds": [asdict(bound) for bound in bounds(account, timeline.machine)],
                "verdict": verdict(account, timeline.machine),
            }
            for name, account in found.items()
        },
    }
