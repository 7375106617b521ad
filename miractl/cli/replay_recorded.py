"""`miractl replay --as-recorded`: the steps of a server through the runtime's own objects."""

from pathlib import Path
from typing import Any

from miractl import units
from miractl.cli.replay_served import Comparison, compare, comparison_facts, print_comparison
from miractl.errors import UsageError
from miractl.output import Output, table
from miractl.policy.registry import DEFAULT, ONLINE, POLICIES
from miractl.simulate.driving import Drive, Slots, drive, equal_slots, recorded_slots
from miractl.suggest import nearest
from miractl.telemetry.trace import Trace, read_trace

SCHEMA = "miractl.replay-recorded/1"
SHOWN = ("lru", "lfu", "heat", DEFAULT)


def names_of(given: str | None) -> list[str]:
    """The policies asked for. Raises UsageError for what a running engine cannot follow."""
    names = list(ONLINE) if given == "all" else given.split(",") if given else list(SHOWN)
    for name in names:
        if name in POLICIES and name not in ONLINE:
            raise UsageError(
                f"--policy {name} knows the future, which no server does",
                hint=f"leave --as-recorded out, or one of: {', '.join(ONLINE)}",
            )
        if name not in ONLINE:
            hint = f"with --as-recorded one of: {', '.join(ONLINE)}, or all"
            raise UsageError(f"--policy: no policy {name!r}{nearest(name, ONLINE)}", hint=hint)
    return [name for name in ONLINE if name in names]


def run(
    trace: Trace, counts: list[int] | None, names: list[str], seconds: float
) -> dict[Slots, list[Drive]]:
    """Drive every policy with every number of slots a layer; `seconds` is the time of a step.

    None: with the slots of the server that recorded.
    """
    layers = trace.ids.shape[1]
    recorded = recorded_slots(trace)
    found = [recorded] if counts is None and recorded else []
    found += [equal_slots(count, layers) for count in counts or ()]
    return {slots: [drive(trace, name, slots, seconds) for name in names] for slots in found}


def print_runs(trace: Trace, names: list[str], runs: dict[Slots, list[Drive]], out: Output) -> None:
    """A table for each number of slots."""
    first = next(iter(runs.values()))[0]
    out.data(out.style(f"{trace.name}{f' · {trace.model}' if trace.model else ''}", "bold"))
    out.data(
        f"{units.counted(first.tokens, 'token')} in {units.counted(first.steps, 'step')}"
        " as recorded, nothing prefetched; an expert counts once a step and layer"
    )
    for slots, drives in runs.items():
        rows = [
            (
                *(name, units.format_share(found.hit_rate)),
                *(f"{found.misses / found.steps:.1f}", f"{found.misses / found.tokens:.1f}"),
                *(f"{found.entered.sum() / found.tokens:.1f}", POLICIES[name].summary),
            )
            for name, found in zip(names, drives, strict=True)
        ]
        headers = ("policy", "hits", "misses/step", "misses/token", "kept/token", "what it does")
        where = " of the server" if trace.slots == (slots.slots, slots.ways) else ""
        out.data(
            f"\n{units.counted(sum(slots.ways), 'resident')} in"
            f" {units.counted(slots.slots, 'slot')}{where}\n{table(rows, headers)}"
        )


def facts_of(
    trace: Trace,
    names: list[str],
    runs: dict[Slots, list[Drive]],
    served: Comparison | str | None,
) -> dict[str, Any]:
    """The same for programs; `served`: the run of the server, if it was asked for."""
    return {
        "trace": trace.name,
        "model": trace.model,
        "as_served": None if served is None else comparison_facts(served),
        "runs": [
            {
                "slots": slots.slots,
                "ways": list(slots.ways),
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
            for slots, drives in runs.items()
        ],
    }


def replay_recorded(
    traces: list[tuple[Path, list[int] | None]],
    given: str | None,
    seconds: float,
    out: Output,
    json: bool,
) -> None:
    """Replay traces, each with its numbers of slots a layer or as recorded, and print it."""
    names = names_of(given)
    facts = []
    for path, counts in traces:
        trace = read_trace(path)
        runs = run(trace, counts, names, seconds)
        served = compare(trace) if counts is None else None
        if json:
            facts.append(facts_of(trace, names, runs, served))
            continue
        print_runs(trace, names, runs, out)
        if served is not None:
            print_comparison(served, out)
    if json:
        out.json({"schema": SCHEMA, "step_seconds": seconds, "traces": facts})
