"""`miractl replay`: what each cache policy would have hit on recorded routing, and why."""

import csv
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from miractl import units
from miractl.cli.options import json_option
from miractl.errors import MiractlError, UsageError
from miractl.output import Output, table
from miractl.suggest import nearest

if TYPE_CHECKING:
    from miractl.native.replay import Routing
    from miractl.simulate.study import Score
    from miractl.telemetry.trace import Trace

SCHEMA = "miractl.replay/1"
SHOWN = ("lru", "lfu", "heat", "learned", "belady", "optimum")
SHARES = "12.5%,25%,50%"
PICTURE_SHARES = "6.25%,12.5%,18.75%,25%,37.5%,50%,62.5%,75%"
WORST = 3


@click.command()
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--policy",
    "policies",
    metavar="NAME,...",
    help=f"Policies to compare, or all.  [default: {','.join(SHOWN)}]",
)
@click.option(
    "--slots",
    metavar="SHARE,...",
    help=f"Slots: shares of the experts, or experts a layer.  [default: {SHARES}]",
)
@click.option(
    "--as-recorded",
    is_flag=True,
    help="Take the steps as a server took them, through the runtime's own slot table.",
)
@click.option("--link", metavar="RATE", help="Rate of the link, 15.8GB/s; with --expert-size.")
@click.option("--expert-size", metavar="SIZE", help="Bytes of an expert, 13MB; with --link.")
@click.option(
    "--token-time",
    metavar="DURATION",
    default="50ms",
    show_default=True,
    help="Time of a token; the heat score runs on it.",
)
@click.option(
    "--csv", "as_csv", is_flag=True, help="Print CSV, a row for each policy and number of slots."
)
@click.option("-o", "--output", metavar="FILE", help="Draw hit rate over slots: a PNG.")
@json_option
def command(traces: tuple[str, ...], output: str | None, **options: Any) -> None:
    """Replay recorded routing under several cache policies, beside LRU, LFU and the optimum.

    Caches start cold, learners empty; every expert that a token asks for counts. "Gap" is the share
    of the way from LRU to the best there can be with the policy's own freedoms: 0 is LRU, 1 is a
    cache that knows the future. Nothing is prefetched, so nothing is late or wasted.

    \b
    Policies: lru, lfu, random, heat, lru-pool, learned, learned-layer,
    learned-bypass; and those that know the future: belady, belady-bypass,
    belady-pool, optimum.

    \b
    Examples:
      miractl replay trace.npz
      miractl replay trace.npz --slots 25% --link 15.8GB/s --expert-size 13MB
      miractl replay a.npz b.npz --policy all --json
      miractl replay trace.npz -o hits.png
      miractl replay trace.npz --as-recorded --policy learned,heat,lru
    """
    from miractl.simulate.study import compare, routing_of
    from miractl.telemetry.trace import read_trace

    names = [] if options["as_recorded"] else _names(options["policies"])
    seconds = _parsed("--token-time", options["token_time"], units.parse_seconds)
    fetch = _fetch_seconds(options["link"], options["expert_size"])
    wanted = options["slots"] or (PICTURE_SHARES if output else SHARES)
    out = Output(json=options["as_json"])
    if options["as_recorded"]:
        _replay_recorded(traces, output, options, seconds, wanted, out)
        return
    results: list[tuple[Trace, Routing, list[list[Score]]]] = []
    for path in traces:
        trace = read_trace(Path(path))
        routing = routing_of(trace)
        slots = _slots(wanted, routing)
        results.append((trace, routing, [compare(routing, n, names, seconds) for n in slots]))
    if output:
        _draw(output, results, out)
    if options["as_json"]:
        facts = [_facts(*result, fetch) for result in results]
        out.json({"schema": SCHEMA, "token_seconds": seconds, "traces": facts})
    elif options["as_csv"]:
        out.data(_csv(results, fetch))
    else:
        for number, result in enumerate(results):
            _print(*result, fetch, out, "\n" if number else "")


def _replay_recorded(
    traces: tuple[str, ...],
    output: str | None,
    options: dict[str, Any],
    seconds: float,
    wanted: str,
    out: Output,
) -> None:
    from miractl.cli.replay_recorded import replay_recorded
    from miractl.simulate.study import routing_of
    from miractl.telemetry.trace import read_trace

    if output or options["as_csv"] or options["link"]:
        raise UsageError("--as-recorded prints a table or JSON", hint="leave -o, --csv, --link out")
    paths = [Path(path) for path in traces]
    slots = [_slots(wanted, routing_of(read_trace(path))) for path in paths]
    replay_recorded(
        list(zip(paths, slots, strict=True)),
        *(options["policies"], seconds, out),
        json=options["as_json"],
    )


def _names(given: str | None) -> list[str]:
    from miractl.policy.registry import POLICIES
    from miractl.simulate.study import BASE, BEST

    names = list(POLICIES) if given == "all" else given.split(",") if given else list(SHOWN)
    for name in names:
        if name not in POLICIES:
            hint = f"one of: {', '.join(POLICIES)}, or all"
            raise UsageError(f"--policy: no policy {name!r}{nearest(name, POLICIES)}", hint=hint)
    return [name for name in POLICIES if name in {*names, BASE, BEST}]


def _parsed(option: str, text: str, parse: Any) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _fetch_seconds(link: str | None, size: str | None) -> float | None:
    """Seconds to bring one expert; None if not asked for."""
    if (link is None) != (size is None):
        missing = "--expert-size" if size is None else "--link"
        raise UsageError(
            f"{missing} is missing", hint="--link 15.8GB/s --expert-size 13MB belong together"
        )
    if link is None:
        return None
    rate = float(_parsed("--link", link, units.parse_rate))
    if rate <= 0:
        raise UsageError(f"--link: {link!r} moves nothing")
    return float(_parsed("--expert-size", size or "", units.parse_bytes)) / rate


def _slots(text: str, routing: "Routing") -> list[int]:
    """Experts a layer, rising and each once."""
    from miractl.simulate.study import slots_for

    found = set()
    for part in text.split(","):
        if part.strip().isdecimal():
            count = int(part)
        else:
            count = slots_for(_parsed("--slots", part, units.parse_share), routing)
        if not 0 < count <= routing.experts:
            raise UsageError(f"--slots: {part.strip()} is not 1 to {routing.experts} a layer")
        found.add(count)
    return sorted(found)


def _worst(routing: "Routing", trace: "Trace", scores: "list[Score]") -> list[tuple[int, float]]:
    """Layers where the default hits least, by the model's own index."""
    from miractl.policy.registry import DEFAULT

    score = next((s for s in scores if s.policy == DEFAULT), scores[0])
    indices = trace.layer_indices or range(routing.layers)
    return sorted(zip(indices, score.layer_rates, strict=True), key=lambda pair: pair[1])[:WORST]


def _print(
    trace: "Trace",
    routing: "Routing",
    groups: "list[list[Score]]",
    fetch: float | None,
    out: Output,
    before: str,
) -> None:
    from miractl.policy.registry import POLICIES
    from miractl.simulate.study import verdict

    out.data(
        before + out.style(f"{trace.name}{f' · {trace.model}' if trace.model else ''}", "bold")
    )
    cycle = routing.layers * routing.top
    out.data(
        f"{routing.tokens:,} tokens, {routing.layers} layers, {routing.top} of {routing.experts}"
        f" experts; a token asks for {cycle} (one LRU over all layers needs more slots to hit)"
    )
    for scores in groups:
        slots = scores[0].slots
        share = units.format_share(slots / routing.experts)
        out.data(f"\n{slots} slots a layer, {slots * routing.layers:,} in all, {share}")
        rows = [
            (
                *(s.policy, units.format_share(s.hit_rate), _two(s.gap)),
                *(f"{s.misses_per_token:.1f}", f"{s.entered_per_token:.1f}"),
                *(() if fetch is None else (units.format_seconds(s.misses_per_token * fetch),)),
                POLICIES[s.policy].summary,
            )
            for s in scores
        ]
        link = () if fetch is None else ("link/token",)
        headers = ("policy", "hits", "gap", "misses/token", "kept/token", *link, "what it does")
        out.data(table(rows, headers))
        worst = ", ".join(
            f"{layer} ({units.format_share(rate)})"
            for layer, rate in _worst(routing, trace, scores)
        )
        out.data(f"worst layers: {worst}\n{verdict(scores)}")


def _two(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _fields(score: "Score", fetch: float | None) -> dict[str, Any]:
    return {
        "policy": score.policy,
        "slots_per_layer": score.slots,
        "hit_rate": score.hit_rate,
        "gap": score.gap,
        "gap_to_belady": score.layer_gap,
        "misses_per_token": score.misses_per_token,
        "entered_per_token": score.entered_per_token,
        "link_seconds_per_token": None if fetch is None else score.misses_per_token * fetch,
    }


def _facts(
    trace: "Trace", routing: "Routing", groups: "list[list[Score]]", fetch: float | None
) -> dict[str, Any]:
    from miractl.simulate.study import verdict

    return {
        "trace": trace.name,
        "model": trace.model,
        "tokens": routing.tokens,
        "layers": routing.layers,
        "experts": routing.experts,
        "top_k": routing.top,
        "token_cycle": routing.layers * routing.top,
        "runs": [
            {
                "slots_per_layer": scores[0].slots,
                "share": scores[0].slots / routing.experts,
                "verdict": verdict(scores),
                "policies": [
                    {**_fields(s, fetch), "layer_hit_rates": list(s.layer_rates)} for s in scores
                ],
            }
            for scores in groups
        ],
    }


def _csv(results: "list[tuple[Trace, Routing, list[list[Score]]]]", fetch: float | None) -> str:
    text = io.StringIO()
    rows = [
        {"trace": trace.name, **_fields(score, fetch)}
        for trace, _, groups in results
        for scores in groups
        for score in scores
    ]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


def _draw(
    output: str, results: "list[tuple[Trace, Routing, list[list[Score]]]]", out: Output
) -> None:
    """Write the picture whole or not at all."""
    from miractl.simulate.picture import render_png

    if len(results) > 1:
        raise UsageError("-o draws one trace", hint="name one TRACE")
    trace, routing, groups = results[0]
    scores = [score for group in groups for score in group]
    picture = render_png(trace.model or trace.name, routing.experts, scores)
    target = Path(output)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_bytes(picture)
        os.replace(partial, target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise MiractlError(f"{output}: {error.strerror}") from None
    out.note(f"wrote {output}")
