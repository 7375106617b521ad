"""`miractl bench serve`: a running server under load."""

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from miractl.cli.options import json_option, url_option
from miractl.cli.progress import clear_progress, show_progress
from miractl.cli.prompts import read_prompts
from miractl.output import Output, table
from miractl.paths import DEMO_PROMPTS
from miractl.telemetry.client import Client
from miractl.telemetry.snapshot import Snapshot
from miractl.telemetry.span import Span, restarted
from miractl.units import counted, format_seconds, format_share

if TYPE_CHECKING:
    from miractl.telemetry.traffic import Traffic

SCHEMA = "miractl.bench.serve/1"
SHARES = {"median": 0.5, "p90": 0.9, "p99": 0.99, "highest": 1.0}
TIMES = {
    "first_token_seconds": "first token",
    "between_tokens_seconds": "each token after it",
    "answer_seconds": "whole answer",
}


@click.command()
@url_option
@click.option(
    "--requests",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="To send, after one that is not counted.",
)
@click.option(
    *("--concurrency", "at_once"),
    type=click.IntRange(1, 1024),
    default=4,
    show_default=True,
    help="Requests at a time; an answer's end sends the next.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Of an answer, at most.",
)
@click.option(
    "--prompts",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Text whose paragraphs are the prompts, in turn; a few of several kinds by default.",
)
@json_option
def serve(
    url: str,
    requests: int,
    at_once: int,
    tokens: int,
    prompts: Path | None,
    as_json: bool,
) -> None:
    """Measure a running server under load: times of answers, tokens a second.

    Each prompt begins with a number of its own, so that no answer is sped up by what the server
    keeps of an earlier one. Answers are greedy. Requests that fail are counted and said.

    \b
    Examples:
      miractl bench serve
      miractl bench serve --concurrency 8 --requests 100 --tokens 128
      miractl bench serve --url http://127.0.0.1:8080 --prompts questions.txt --json
    """
    out, client = Output(json=as_json), Client(url)
    texts = read_prompts(prompts or DEMO_PROMPTS)

    from miractl.telemetry.traffic import Asking  # takes half a second

    model = client.status().model.id
    asking = Asking(client, model, tokens)
    numbered = [f"{at}. {text}" for at, text in enumerate(islice(cycle(texts), requests + 1))]
    try:
        asking.measure(numbered[:1], 1, show_progress)
        before = client.status()
        traffic = asking.measure(numbered[1:], at_once, show_progress)
        facts = _facts(traffic) | {"hit_rate": _hit_rate(before, client.status())}
    finally:
        clear_progress()
    asked = {"url": client.url, "model": model, "concurrency": at_once, "most_tokens": tokens}
    if as_json:
        out.json({"schema": SCHEMA, **asked, **facts})
        return
    out.data(
        f"{model} at {client.url}: {counted(requests, 'request')}, {at_once} at a time, "
        f"{counted(tokens, 'token')} each at most"
    )
    out.data(_words(facts))
    if traffic.failures:
        out.warn(f"{counted(len(traffic.failures), 'request')} failed: {traffic.failures[0]}")


def _facts(traffic: "Traffic") -> dict[str, Any]:
    times: dict[str, list[float | None]] = {
        "first_token_seconds": [answer.first for answer in traffic.answered],
        "between_tokens_seconds": [answer.between for answer in traffic.answered],
        "answer_seconds": [answer.whole for answer in traffic.answered],
    }
    return {
        "answered": len(traffic.answered),
        "failed": len(traffic.failures),
        "first_failure": traffic.failures[0] if traffic.failures else None,
        "seconds": traffic.seconds,
        "prompt_tokens": sum(answer.prompt_tokens for answer in traffic.answered),
        "tokens": traffic.tokens,
        "tokens_per_second": traffic.tokens / traffic.seconds,
        "requests_per_second": len(traffic.answered) / traffic.seconds,
        **{name: _quantiles(values) for name, values in times.items()},
    }


def _quantiles(values: Sequence[float | None]) -> dict[str, float] | None:
    """Linear between the two values that a share lies between; None without a value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return dict(zip(SHARES, np.quantile(known, list(SHARES.values())).tolist(), strict=True))


def _hit_rate(before: Snapshot, after: Snapshot) -> float | None:
    """Of the expert cache meanwhile; None where nothing was looked up, or the server restarted."""
    return None if restarted(before, after) else Span.between(before, after).hit_rate


def _words(facts: dict[str, Any]) -> str:
    rows = [
        (words, *(format_seconds(found and found[share]) for share in SHARES))
        for name, words in TIMES.items()
        for found in [facts[name]]
    ]
    return "\n".join(
        (
            table(rows, ("time of", *SHARES)),
            f"{facts['tokens_per_second']:.4g} tokens/s and {facts['requests_per_second']:.3g} "
            f"requests/s in {format_seconds(facts['seconds'])}: {facts['prompt_tokens']:,} tokens "
            f"of prompts, {facts['tokens']:,} of answers",
            f"cache hits meanwhile {format_share(facts['hit_rate'])}",
        )
    )
