"""`miractl replay`: what each cache policy would have hit on recorded routing, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from miractl import units
from miractl.cli.options import complete_profile, json_option
from miractl.cli.replay_report import Result, csv_of, print_result, result_facts
from miractl.errors import UsageError
from miractl.outfile import check_target, write_whole
from miractl.output import Output
from miractl.paths import DEMO_TRACE
from miractl.suggest import nearest

if TYPE_CHECKING:
    from miractl.native.replay import Routing
    from miractl.simulate.linked import LinkScore
    from miractl.simulate.whatif import Asked
    from miractl.telemetry.trace import Trace

SCHEMA = "miractl.replay/1"
SHOWN = ("lru", "lfu", "heat", "learned", "belady", "optimum")
SHARES = "12.5%,25%,50%"
SLOTS_HINT = "a share like 25%, or a whole number of experts a layer"
PICTURE_SHARES = "6.25%,12.5%,18.75%,25%,37.5%,50%,62.5%,75%"


@click.command()
@click.argument("traces", metavar="[TRACE]...", nargs=-1, type=click.Path())
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
@click.option("--link", metavar="RATE", help="Rate of the link, 15.8GB/s.")
@click.option(
    "--expert-size",
    metavar="SIZE",
    help="Bytes of an expert, 13MB.  [default: as planned or recorded]",
)
@click.option(
    "--layer-time",
    metavar="DURATION",
    help="Time that a layer computes.  [default: by the profile's card, else the token's part]",
)
@click.option(
    "--profile",
    metavar="NAME",
    help="Play on the card of a profile: its link, and the slots that fit.",
    shell_complete=complete_profile,
)
@click.option(
    "--token-time",
    metavar="DURATION",
    default="50ms",
    show_default=True,
    help="Time of a token; the heat score runs on it, and layers without a time of their own.",
)
@click.option(
    "--csv", "as_csv", is_flag=True, help="Print CSV, a row for each policy and number of slots."
)
@click.option("-o", "--output", metavar="FILE", help="Draw hit rate over slots: a PNG.")
@json_option
def command(traces: tuple[str, ...], output: str | None, **options: Any) -> None:
    """Replay recorded routing under several cache policies, beside LRU, LFU and the optimum.

    Without TRACE it is that of the demo model, which comes with miractl; others come from
    miractl serve --record-trace.

    Caches start cold, learners empty; every expert that a token asks for counts. "Gap" is the share
    of the way from LRU to the best there can be with the policy's own freedoms: 0 is LRU, 1 is a
    cache that knows the future.

    On a link (--link, or a --profile's) the recording is played in time, with and without
    prefetches: a late one is no hit, and one in vain costs what it delays.

    \b
    Policies: lru, lfu, random, heat, lru-pool, learned, learned-layer,
    learned-bypass; lru-shift, lfu-shift and heat-shift, which move slots
    between layers; and those that know the future: belady, belady-bypass,
    belady-pool, optimum.

    \b
    Examples:
      miractl replay
      miractl replay trace.npz
      miractl replay trace.npz --slots 25% --link 15.8GB/s --expert-size 13MB
      miractl replay trace.npz --profile a10
      miractl replay a.npz b.npz --policy all --json
      miractl replay trace.npz -o hits.png
      miractl replay trace.npz --as-recorded --policy learned,heat,lru
    """
    from miractl.simulate.study import routing_of
    from miractl.telemetry.trace import read_trace

    if output:
        _check_picture(Path(output), traces)
    names = [] if options["as_recorded"] else _names(options["policies"])
    traces = traces or (str(DEMO_TRACE),)
    if options["as_csv"] and options["as_json"]:
        raise UsageError("--csv and --json are two forms of the same", hint="leave one of them out")
    seconds = _above_zero("--token-time", options["token_time"], units.parse_seconds)
    asked = _asked(options, seconds)
    wanted = options["slots"] or (PICTURE_SHARES if output else None)
    out = Output(json=options["as_json"])
    if options["as_recorded"]:
        _replay_recorded(traces, output, options, seconds, out)
        return
    results = []
    for path in traces:
        trace = read_trace(Path(path))
        routing = routing_of(trace)
        results.append(_replayed(trace, routing, names, wanted, asked, seconds))
    if output:
        _draw(output, results, out)
    if options["as_json"]:
        facts = [result_facts(result) for result in results]
        out.json({"schema": SCHEMA, "token_seconds": seconds, "traces": facts})
    elif options["as_csv"]:
        out.data(csv_of(results))
    else:
        for number, result in enumerate(results):
            print_result(result, out, "\n" if number else "")


def _replayed(
    trace: "Trace",
    routing: "Routing",
    names: list[str],
    wanted: str | None,
    asked: "Asked | None",
    seconds: float,
) -> Result:
    """One trace at every number of slots, on a link if there is one."""
    from miractl.simulate.linked import compare_on_link, foresee
    from miractl.simulate.study import compare
    from miractl.simulate.whatif import setting_for

    setting, fitting = (None, None) if asked is None else setting_for(asked, trace, routing)
    counts = [fitting] if wanted is None and fitting else _slots(wanted or SHARES, routing)
    groups = [compare(routing, count, names, seconds) for count in counts]
    linked: list[list[LinkScore]] = []
    if setting is not None:
        guesses = foresee(routing, setting.reach)
        linked = [
            compare_on_link(routing, count, names, setting, guesses, seconds) for count in counts
        ]
    return Result(trace, routing, groups, setting, linked)


def _replay_recorded(
    traces: tuple[str, ...],
    output: str | None,
    options: dict[str, Any],
    seconds: float,
    out: Output,
) -> None:
    from miractl.cli.replay_recorded import replay_recorded
    from miractl.simulate.study import routing_of
    from miractl.telemetry.trace import read_trace

    if output or options["as_csv"] or options["link"] or options["profile"]:
        raise UsageError(
            "--as-recorded prints a table or JSON", hint="leave -o, --csv, --link and --profile out"
        )
    paths = [Path(path) for path in traces]
    slots: list[list[int] | None] = []
    for path in paths:
        trace, wanted = read_trace(path), options["slots"]
        # Without a word, those of the server that recorded.
        as_they_were = wanted is None and trace.slots is not None
        slots.append(None if as_they_were else _slots(wanted or SHARES, routing_of(trace)))
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


def _asked(options: dict[str, Any], token_seconds: float) -> "Asked | None":
    """What is said of a machine; None if nothing is."""
    from miractl.profiles import load_profile
    from miractl.simulate.whatif import Asked

    link, size, profile = options["link"], options["expert_size"], options["profile"]
    layer = options["layer_time"]
    if profile is None and link is None and size is None:
        if layer is not None:
            raise UsageError("--layer-time needs a link", hint="--link 15.8GB/s --expert-size 13MB")
        return None
    if profile is None and link is None:
        raise UsageError("--link is missing", hint="--link 15.8GB/s --expert-size 13MB")
    return Asked(
        token_seconds,
        link=_above_zero("--link", link, units.parse_rate),
        expert_bytes=_above_zero("--expert-size", size, units.parse_bytes),
        layer_seconds=_above_zero("--layer-time", layer, units.parse_seconds),
        profile=None if profile is None else load_profile(profile),
    )


def _above_zero(option: str, text: str | None, parse: Any) -> Any:
    """The value, None if not given. Raises UsageError for 0."""
    if text is None:
        return None
    value = _parsed(option, text, parse)
    if value <= 0:
        raise UsageError(f"{option}: {text!r} is nothing")
    return value


def _slots(text: str, routing: "Routing") -> list[int]:
    """Experts a layer, rising and each once."""
    from miractl.simulate.study import slots_for

    found = set()
    for part in text.split(","):
        count = int(part) if part.strip().isdecimal() else slots_for(_share(part), routing)
        if not 0 < count <= routing.experts:
            raise UsageError(
                f"--slots: {part.strip()} is not 1 to {routing.experts} a layer", hint=SLOTS_HINT
            )
        found.add(count)
    return sorted(found)


def _share(text: str) -> float:
    try:
        return units.parse_share(text)
    except ValueError:
        raise UsageError(
            f"--slots: {text.strip()!r} is no share above 0% and no whole number", hint=SLOTS_HINT
        ) from None


def _check_picture(path: Path, traces: tuple[str, ...]) -> None:
    """Raise UsageError for what cannot be the picture, or is what it is drawn from."""
    check_target(path)
    if path.suffix.lower() != ".png":
        raise UsageError(f"-o {path}: the picture is a PNG", hint=f"-o {path.with_suffix('.png')}")
    if any(path.exists() and path.samefile(trace) for trace in traces if Path(trace).exists()):
        raise UsageError(f"-o {path} is the trace itself", hint="name another file")


def _draw(output: str, results: list[Result], out: Output) -> None:
    """Write the picture whole or not at all."""
    from miractl.simulate.picture import render_png

    if len(results) > 1:
        raise UsageError("-o draws one trace", hint="name one TRACE")
    result = results[0]
    scores = [score for group in result.groups for score in group]
    linked = [score for group in result.linked for score in group]
    title = result.trace.model or result.trace.name
    picture = render_png(title, result.routing.experts, scores, linked)
    write_whole(Path(output), picture)
    out.note(f"wrote {output}")
