"""`miractl bench link`: how fast memory gets into slots."""

import dataclasses
from typing import TYPE_CHECKING

import click

from miractl.cli.options import json_option
from miractl.output import Output, table
from miractl.probe.spread import Spread
from miractl.units import format_bytes, format_rate

if TYPE_CHECKING:
    from miractl.runtime.link import CopyRates

SCHEMA = "miractl.bench.link/1"


@click.command()
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda:0.")
@click.option("--repeat", type=click.IntRange(1), default=5, show_default=True, help="Rounds.")
@json_option
def link(device: str, repeat: int, as_json: bool) -> None:
    """Measure copies from host memory into expert slots.

    On a GPU these are pinned copies over its link. Without one slots are in host memory: then no
    link is crossed, and the figures are those of memory itself.

    \b
    Examples:
      miractl bench link
      miractl bench link --device cuda:1 --json
    """
    out = Output(json=as_json)

    from miractl.runtime.device import pick_device  # torch takes seconds: only now
    from miractl.runtime.link import measure

    place = pick_device(device)
    rates = measure(place, repeat)
    if as_json:
        rows = [_facts(rate) for rate in rates]
        facts = {"device": str(place), "crosses_a_link": place.type == "cuda"}
        out.json({"schema": SCHEMA, **facts, "rounds": repeat, "copies": rows})
        return
    out.data(
        f"pinned copies to {place}"
        if place.type == "cuda"
        else "no GPU: copies within host memory, no link is crossed"
    )
    out.data(_table(rates))


def _facts(rate: "CopyRates") -> dict[str, object]:
    return {"bytes": rate.size, "bytes_per_second": dataclasses.asdict(Spread.of(rate.rates))}


def _table(rates: "list[CopyRates]") -> str:
    rows = []
    for rate in rates:
        spread = Spread.of(rate.rates)
        figures = [format_rate(v) for v in (spread.median, spread.low, spread.high)]
        rows.append((format_bytes(rate.size), *figures))
    return table(rows, ("copy", "median", "lowest", "highest"))
