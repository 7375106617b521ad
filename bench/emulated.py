"""What a link costs and what hides it: copies, bets and host compute on an emulated link.

    python bench/emulated.py PACKED [PACKED ...] [--memory 25%] [--repeat 5] [--faster 1 40]
                             [--rates 31.5GB/s 7.88GB/s] [--ratios 0.5 1 2] [--out FILE]

For each packed folder, each link and each device: prefetch on and off without host compute, then
host compute, in turns, each round with another prompt. Time is that of the processor plus that of
imagined waiting, so that a busy machine changes little: what a second is here, is a second on an
idle one. Ratios are those of one round; medians with lowest and highest are told.

- copy/layer: what an expert's copy takes, in times of a layer that waits for nothing,
- waiting: share of the time in which transfers are waited for, without bets and with; the first is
  the most that bets could save,
- hidden: share of the link's busy time that nobody waited for,
- prefetch: time with bets over time without,
- host: time with host compute over time without it, both with bets.

Where an expert takes longer to compute than to copy, as on most processors over an A10's link,
copies hide behind the computing of other experts, nothing is waited for, and bets have nothing to
save. Two things bring the proportions of a device about.

- It computes experts faster: with `--faster 40` the clock counts a fortieth of the time that they
  take here, which is what an A10's memory of 600 GB/s makes of one core's 12 to 15 GB/s. All else,
  attention and deciding, takes what it takes here.
- Its link is no faster than computing is there: with `--ratios 0.5 1 2` the link is so slow that a
  copy takes so many times what a layer takes here, which is measured first. If a layer of
  Qwen3-30B-A3B takes an A10 0.5 ms, as bench/bets.py assumes, its experts of 9.4 MB are copied in
  0.6 of that at x16 and in 2.4 of it at x4.

What host compute gains is told only for devices no faster than the host, which they
are the same processor as.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from write_benchmarks import save_table

from miractl.parameters import PARAMETERS
from miractl.probe.spread import Spread
from miractl.runtime.engine import Engine, EngineOptions
from miractl.runtime.speed import _stepper
from miractl.runtime.tokenizer import quiet_transformers
from miractl.units import format_rate, format_seconds, parse_rate

NO_TIME = 1e15  # bytes a second of a link whose copies take nothing
RATES = ("31.5GB/s", "7.88GB/s")  # of an A10 in an x16 and an x4 slot
RATIOS = (0.5, 1.0, 2.0)  # of the copy of an expert to the computing of a layer
ON_DEVICE = ("hits", "misses")  # parts of a step that a device takes over
TITLE = "Copies over an emulated link, a quarter of the experts in slots"
NOTE = (
    "bench/emulated.py, {rounds} rounds, each with its prompt. Copy/layer: what a copy takes, in "
    "times of a layer that waits for nothing. Links called slowed are so slow that this is as on a "
    "device: on an A10 0.6 at x16 and 2.4 at x4, with experts of Qwen3-30B-A3B in bfloat16 and if "
    "its layers take 0.5 ms. Device: how many times as fast as one core here experts are "
    "computed. Waiting: share of the time in which copies are waited for, without bets and with; "
    "the first is the most that bets could save. Hidden: share of the copies' time that nobody "
    "waits for, without bets and with. Prefetch: time with bets over time without. Host: time with "
    "host compute over time without it, both with bets, the host being the device."
)
HEADERS = ("model", "link", "copy/layer", "device", "a copy", "an expert")
HEADERS += ("hits, without / with bets", "waiting, without / with bets")
HEADERS += ("hidden without", "hidden with", "prefetch", "host")
CASES = {  # name -> prefetch, host compute
    "off": (False, "off"),
    "bets": (True, "off"),
    "host": (True, "auto"),
}


class Time:
    """Seconds that this thread has computed, and those that it would have waited.

    What the device does counts as if it were `faster` times as fast.
    """

    def __init__(self, faster: float) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._faster, self._now, self._last = faster, 0.0, time.clock_gettime(self._clock)
        self.device_seconds = 0.0
        self.part: Callable[[], str | None] = lambda: None  # of a step, that passes now

    def __call__(self) -> float:
        last, self._last = self._last, time.clock_gettime(self._clock)
        passed = self._last - last
        if self.part() in ON_DEVICE:
            passed /= self._faster
            self.device_seconds += passed
        self._now += passed
        return self._now

    def sleep(self, seconds: float) -> None:
        """Wait in imagination."""
        self._now += seconds


@contextmanager
def engines(
    folder: Path, memory: str, rate: float, faster: float, cases: Collection[str] = tuple(CASES)
) -> Iterator[dict[str, tuple[Engine, Time]]]:
    """An engine for each case."""
    defaults = {name: parameter.default for name, parameter in PARAMETERS.items()}
    made: dict[str, tuple[Engine, Time]] = {}
    try:
        for name in cases:
            prefetch, host = CASES[name]
            clock = Time(faster)
            options = EngineOptions(
                *(folder, folder.name, defaults | {"prefetch": prefetch}),
                device="cpu",
                expert_memory=memory,
                with_tokenizer=False,
                emulate_link=rate,
                host_compute=host,
            )
            engine = Engine.load(options, clock, clock.sleep)
            clock.part = partial(getattr, engine.stopwatch, "part")
            made[name] = engine, clock
        yield made
    finally:
        for engine, _ in made.values():
            engine.close()


@torch.no_grad()
def decode(engine: Engine, clock: Time, prompt: torch.Tensor, tokens: int) -> dict[str, float]:
    """Seconds of the tokens after a prompt, and what link and cache did meanwhile."""
    step = _stepper(engine.model)
    ids, past = step(prompt, None)
    before, began = totals(engine, clock), clock()
    for _ in range(tokens):
        ids, past = step(ids, past)
    found = {name: after - before[name] for name, after in totals(engine, clock).items()}
    return {"seconds": clock() - began, **found}


def totals(engine: Engine, clock: Time) -> dict[str, float]:
    """Counters since the start."""
    facts, stats = engine.snapshot(), engine.cache.transfers.stats
    cache, bets = facts.cache, facts.prefetch
    return {
        "busy_seconds": stats.busy_seconds,
        "waited_seconds": stats.waited_seconds,
        "device_seconds": clock.device_seconds,
        **{name: getattr(cache, name) for name in ("lookups", "hits", "copied", "on_host")},
        **{name: getattr(bets, name) for name in ("issued", "used", "late", "wasted")},
    }


def layer_seconds(folder: Path, memory: str, faster: float, tokens: int) -> tuple[float, int]:
    """What a layer of one token takes where copies take nothing; bytes of an expert."""
    with engines(folder, memory, NO_TIME, faster, ("off",)) as made:
        engine, clock = made["off"]
        laps = [decode(engine, clock, torch.full((1, 32), 7), tokens) for _ in range(2)]
        layers = len(engine.outline.layers)
        return laps[1]["seconds"] / tokens / layers, engine.plan.expert_bytes


def measure(
    folder: Path, memory: str, rate: float, faster: float, repeats: int, tokens: int
) -> dict[str, Any]:
    """Rounds of all cases in turns; the first is not counted."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    generator = torch.Generator().manual_seed(0)
    with engines(folder, memory, rate, faster) as made:
        for number in range(repeats + 1):
            prompt = torch.randint(1, 96, (1, 32), generator=generator)
            for name, (engine, clock) in made.items():
                lap = decode(engine, clock, prompt, tokens)
                if number:
                    rounds[name].append(lap)
        record = made["off"][0].plan.expert_bytes
        layers = tokens * len(made["off"][0].outline.layers)
    computing = [(lap["seconds"] - lap["waited_seconds"]) / layers for lap in rounds["off"]]
    return {
        "model": folder.name,
        "emulated_link_bytes_per_second": rate,
        "device_times_faster": faster,
        "copy_seconds": record / rate,
        "expert_seconds": statistics.median(
            lap["device_seconds"] / lap["lookups"] for lap in rounds["off"]
        ),
        "rounds": rounds,
        "copy_by_layer": record / rate / statistics.median(computing),
        "hits": {name: _share(laps, "hits", "lookups") for name, laps in rounds.items()},
        "waiting": {
            name: _share(laps, "waited_seconds", "seconds") for name, laps in rounds.items()
        },
        "prefetch": _ratio(rounds, "bets", "off"),
        "host": _ratio(rounds, "host", "bets") if faster <= 1 else None,
        "hidden": {name: _spread([_hidden(lap) for lap in laps]) for name, laps in rounds.items()},
    }


def _share(laps: list[dict[str, float]], part: str, whole: str) -> float:
    return sum(lap[part] for lap in laps) / sum(lap[whole] for lap in laps)


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

    def total(name: str, what: str) -> str:
        return f"{sum(lap[what] for lap in found['rounds'][name]):.0f}"

    counts = "; ".join(
        f"{name}: {found['hits'][name]:.1%} hits, waiting {found['waiting'][name]:.1%},"
        f" {total(name, 'copied')} copied, {total(name, 'on_host')} on host, bets"
        f" {total(name, 'used')} used {total(name, 'late')} late {total(name, 'wasted')} wasted"
        for name in found["rounds"]
    )
    hidden = ", ".join(f"{name} {shown(figures)}" for name, figures in found["hidden"].items())
    host = f", host {shown(found['host'])}" if found["host"] else ""
    return (
        f"{found['model']}, emulated {_link(found)}, device x {found['device_times_faster']:g}:"
        f" an expert is copied in {format_seconds(found['copy_seconds'])},"
        f" {found['copy_by_layer']:.2g} of a layer,"
        f" computed in {format_seconds(found['expert_seconds'])}\n"
        f"  prefetch {shown(found['prefetch'])}{host}\n"
        f"  hidden: {hidden}\n  {counts}"
    )


def _link(found: dict[str, Any]) -> str:
    return format_rate(found["emulated_link_bytes_per_second"]) + ", slowed" * found["slowed"]


def _row(found: dict[str, Any]) -> list[str]:
    def shown(figures: dict[str, float] | None) -> str:
        return "{median:.3f} ({low:.3f}-{high:.3f})".format(**figures) if figures else "n/a"

    def both(shares: dict[str, float]) -> str:
        return " / ".join(f"{shares[name]:.1%}" for name in ("off", "bets"))

    return [
        found["model"],
        _link(found),
        f"{found['copy_by_layer']:.2g}",
        f"{found['device_times_faster']:g}",
        format_seconds(found["copy_seconds"]),
        format_seconds(found["expert_seconds"]),
        both(found["hits"]),
        both(found["waiting"]),
        shown(found["hidden"]["off"]),
        shown(found["hidden"]["bets"]),
        shown(found["prefetch"]),
        shown(found["host"]),
    ]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--memory", default="25%")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rates", nargs="*", default=RATES)
    parser.add_argument("--ratios", nargs="*", type=float, default=RATIOS)
    parser.add_argument("--faster", nargs="+", type=float, default=[1, 40])
    parser.add_argument("--out", type=Path, help="a file in bench/results")
    args = parser.parse_args()
    quiet_transformers()
    torch.set_num_threads(1)
    found = []
    for folder in args.folders:
        given = folder, args.memory
        links = [(parse_rate(rate), f, False) for rate in args.rates for f in args.faster]
        for faster in args.faster if args.ratios else ():
            seconds, size = layer_seconds(*given, faster, args.tokens)
            links += [(size / (ratio * seconds), faster, True) for ratio in args.ratios]
        for rate, faster, slowed in links:
            case = measure(*given, rate, faster, args.repeat, args.tokens) | {"slowed": slowed}
            print(_words(case), flush=True)
            found.append(case)
    if args.out:
        save_table(args.out, TITLE, NOTE.format(rounds=args.repeat), HEADERS, [*map(_row, found)])


if __name__ == "__main__":
    main()
