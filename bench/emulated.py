"""What a link costs and what hides it: copies, bets and host compute on an emulated link.

    python bench/emulated.py PACKED [PACKED ...] [--memory 25%] [--repeat 5] [--json FILE]

For each packed folder and each rate: prefetch on and off without host compute, then host compute,
in turns, each round with another prompt. Time is that of the processor plus that of imagined
waiting, so that a busy machine changes little: what a second is here, is a second on an idle one.
Ratios are those of one round; medians with lowest and highest are told.

- hidden: share of the link's busy time that nobody waited for,
- prefetch: time with bets over time without,
- host: time with host compute over time without it, both with bets.

Device and host are the same processor here: what host compute gains is the waiting, and what a host
slower than the device would lose is not in it.
"""

import argparse
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from miractl.probe.spread import Spread
from miractl.profiles import PARAMETERS
from miractl.runtime.engine import Engine, EngineOptions
from miractl.runtime.speed import _stepper
from miractl.runtime.tokenizer import quiet_transformers
from miractl.units import format_rate, parse_rate

RATES = ("15.8GB/s", "3.9GB/s")  # of an A10 in an x16 and an x4 slot
CASES = {  # name -> prefetch, host compute
    "off": (False, "off"),
    "bets": (True, "off"),
    "host": (True, "auto"),
}


class Time:
    """Seconds that this thread has computed, and those that it would have waited."""

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._waited = 0.0

    def __call__(self) -> float:
        return time.clock_gettime(self._clock) + self._waited

    def sleep(self, seconds: float) -> None:
        """Wait in imagination."""
        self._waited += seconds


@contextmanager
def engines(folder: Path, memory: str, rate: float) -> Iterator[dict[str, tuple[Engine, Time]]]:
    """An engine for each case."""
    defaults = {name: parameter.default for name, parameter in PARAMETERS.items()}
    made: dict[str, tuple[Engine, Time]] = {}
    try:
        for name, (prefetch, host) in CASES.items():
            clock = Time()
            options = EngineOptions(
                *(folder, folder.name, defaults | {"prefetch": prefetch}),
                device="cpu",
                expert_memory=memory,
                with_tokenizer=False,
                emulate_link=rate,
                host_compute=host,
            )
            made[name] = Engine.load(options, clock, clock.sleep), clock
        yield made
    finally:
        for engine, _ in made.values():
            engine.close()


@torch.no_grad()
def decode(engine: Engine, clock: Time, prompt: torch.Tensor, tokens: int) -> dict[str, float]:
    """Seconds of the tokens after a prompt, and what link and cache did meanwhile."""
    step = _stepper(engine.model)
    ids, past = step(prompt, None)
    before, began = totals(engine), clock()
    for _ in range(tokens):
        ids, past = step(ids, past)
    found = {name: after - before[name] for name, after in totals(engine).items()}
    return {"seconds": clock() - began, **found}


def totals(engine: Engine) -> dict[str, float]:
    """Counters since the start."""
    facts, stats = engine.snapshot(), engine.cache.transfers.stats
    cache, bets = facts.cache, facts.prefetch
    return {
        "busy_seconds": stats.busy_seconds,
        "waited_seconds": stats.waited_seconds,
        **{name: getattr(cache, name) for name in ("lookups", "hits", "copied", "on_host")},
        **{name: getattr(bets, name) for name in ("issued", "used", "late", "wasted")},
    }


def measure(folder: Path, memory: str, rate: float, repeats: int, tokens: int) -> dict[str, Any]:
    """Rounds of all cases in turns; the first is not counted."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    generator = torch.Generator().manual_seed(0)
    with engines(folder, memory, rate) as made:
        for number in range(repeats + 1):
            prompt = torch.randint(1, 96, (1, 32), generator=generator)
            for name, (engine, clock) in made.items():
                lap = decode(engine, clock, prompt, tokens)
                if number:
                    rounds[name].append(lap)
        record = made["off"][0].plan.expert_bytes
    return {
        "model": folder.name,
        "emulated_link_bytes_per_second": rate,
        "copy_seconds": record / rate,
        "rounds": rounds,
        "prefetch": _ratio(rounds, "bets", "off"),
        "host": _ratio(rounds, "host", "bets"),
        "hidden": {name: _spread([_hidden(lap) for lap in laps]) for name, laps in rounds.items()},
    }


def _ratio(rounds: dict[str, list[dict[str, float]]], one: str, other: str) -> dict[str, float]:
    pairs = zip(rounds[one], rounds[other], strict=True)
    return _spread([a["seconds"] / b["seconds"] for a, b in pairs])


def _hidden(lap: dict[str, float]) -> float:
    return 1 - lap["waited_seconds"] / lap["busy_seconds"] if lap["busy_seconds"] else 1.0


def _spread(values: list[float]) -> dict[str, float]:
    spread = Spread.of(values)
    return {"median": spread.median, "low": spread.low, "high": spread.high}


def _words(found: dict[str, Any]) -> str:
    def shown(figures: dict[str, float]) -> str:
        return "{median:.3f} ({low:.3f} to {high:.3f})".format(**figures)

    laps = {name: rows[len(rows) // 2] for name, rows in found["rounds"].items()}
    counts = "; ".join(
        f"{name}: {lap['hits'] / lap['lookups']:.0%} hits, {lap['copied']:.0f} copied,"
        f" {lap['on_host']:.0f} on host, bets {lap['used']:.0f} used {lap['late']:.0f} late"
        f" {lap['wasted']:.0f} wasted"
        for name, lap in laps.items()
    )
    hidden = ", ".join(f"{name} {shown(figures)}" for name, figures in found["hidden"].items())
    return (
        f"{found['model']}, emulated {format_rate(found['emulated_link_bytes_per_second'])}:"
        f" prefetch {shown(found['prefetch'])}, host {shown(found['host'])}\n"
        f"  hidden: {hidden}\n  {counts}"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--memory", default="25%")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rates", nargs="+", default=RATES)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    quiet_transformers()
    torch.set_num_threads(1)
    found = []
    for folder in args.folders:
        for rate in args.rates:
            found.append(measure(folder, args.memory, parse_rate(rate), args.repeat, args.tokens))
            print(_words(found[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"schema": "miractl.bench.emulated/1", "runs": found}))


if __name__ == "__main__":
    main()
