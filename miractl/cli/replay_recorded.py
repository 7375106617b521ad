"""`miractl replay --as-recorded`: the steps of a server through the runtime's own objects."""

from pathlib import Path
from typing import Any

from miractl import units
from miractl.errors import UsageError
from miractl.output import Output, table
from miractl.policy.registry import DEFAULT, ONLINE, POLICIES
from miractl.simulate.driving import Drive, drive, equal_slots
from miractl.suggest import nearest
from miractl.telemetry.trace import Trace, read_trace

SCHEMA = "miractl.replay-recorded/1"
SHOWN = ("lru", "lfu", "heat", DEFAULT)


def names_of(given: str | None) -> list[str]:
    """The policies asked for. Raises UsageError for what a running engine cannot follow."""
    names = list(ONLINE) if given == "all" else given.split(",") if given else list(SHOWN)
    for name in names:
        if name not in ONLINE:
            hint = f"with --as-recorded one of: {', '.join(ONLINE)}, or all"
            raise UsageError(f"--policy: no policy {name!r}{nearest(name, ONLINE)}", hint=hint)
    return [name for name in ONLINE if name in names]


def run(trace: Trace, slots: list[int], names: list[str], seconds: float) -> dict[int, list[Drive]]:
    """Drive every policy with every number of slots a layer; `seconds` is the time of a step."""
    layers = trace.ids.shape[1]
    return {
        count: [drive(trace, name, equal_slots(count, layers), seconds) for name in names]
        for count in slots
    }


def print_runs(trace: Trace, names: list[str], runs: dict[int, list[Drive]], out: Output) -> None:
    """A table for each number of slots."""
    first = next(iter(runs.values()))[0]
    out.data(out.style(f"{trace.name}{f' · {trace.model}' if trace.model else ''}", "bold"))
    out.data(
        f"{first.tokens:,} tokens in {first.steps:,} steps as recorded; an expert counts once a"
        " step and layer"
    )
    for count, drives in runs.items():
        rows = [
            (
                *(name, units.format_share(found.hit_rate)),
                *(f"{found.misses / found.steps:.1f}", f"{found.misses / found.tokens:.1f}"),
                *(f"{found.entered.sum() / found.tokens:.1f}", POLICIES[name].summary),
            )
            for name, found in zip(names, drives, strict=True)
        ]
        headers = ("policy", "hits", "misses/step", "misses/token", "kept/token", "what it does")
        out.data(f"\n{count} slots a layer\n{table(rows, headers)}")


def facts_of(trace: Trace, names: list[str], runs: dict[int, list[Drive]]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "trace": trace.name,
        "model": trace.model,
        "runs": [
            {
                "slots_per_layer": count,
                "policies": [
                    {
                        "policy": name,
                        "hit_rate": found.hit_rate,
                        "lookups": int(found.lookups.sum()),
                        "hits": int(found.hits.sum()),
                        "entered": int(found.entered.sum()),
                        "steps": found.steps,
                        "tokens": found.tokens,
                    }
                    for name, found in zip(names, drives, strict=True)
                ],
            }
            for count, drives in runs.items()
        ],
    }


def replay_recorded(
    traces: list[tuple[Path, list[int]]], given: str | None, seconds: float, out: Output, json: bool
) -> None:
    """Replay traces, each with its numbers of slots a layer, and print what came of it."""
    names = names_of(given)
    facts = []
    for path, slots in traces:
        trace = read_trace(path)
        runs = run(trace, slots, names, seconds)
        if json:
            facts.append(facts_of(trace, names, runs))
        else:
            print_runs(trace, names, runs, out)
    if json:
        out.json({"schema": SCHEMA, "step_seconds": seconds, "traces": facts})
