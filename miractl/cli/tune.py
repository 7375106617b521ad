"""`miractl tune`: the settings that are fastest here, found by measuring."""

import os
import shlex
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from miractl import paths
from miractl.cli.options import (
    json_option,
    parameter_options,
    profile_option,
    runtime_options,
    setting_option,
)
from miractl.cli.progress import clear_progress
from miractl.cli.prompts import prompts_option, read_prompts
from miractl.cli.tune_report import (
    candidate_words,
    gain_words,
    json_of,
    machine_words,
    table_of,
    verdict,
)
from miractl.errors import UsageError
from miractl.outfile import check_target
from miractl.output import Output
from miractl.plan.tuning import best_of, conclude

if TYPE_CHECKING:
    from miractl.cli.tune_search import Search
    from miractl.config import Setting
    from miractl.profiles import Profile

SCHEMA = "miractl.tune/1"
MINUTES, QUICK_MINUTES = 10.0, 2.0
DEFAULT_FILE = "tuned.yaml"


@click.command()
@click.argument("model", required=False)
@profile_option
@setting_option("device", "expert_memory")
@runtime_options
@click.option(
    "--minutes",
    type=click.FloatRange(0.1, 1440),
    help=f"To spend, about.  [default: {MINUTES:g}]",
)
@click.option("--quick", is_flag=True, help=f"Spend about {QUICK_MINUTES:g} minutes.")
@prompts_option
@click.option(
    *("-o", "--output"),
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the profile here, even if nothing is faster than today's settings."
    f"  [default: {DEFAULT_FILE}, if something is]",
)
@json_option
@parameter_options
def command(
    model: str | None,
    profile: str,
    device: str,
    expert_memory: str | None,
    sets: int | None,
    threads: int | None,
    minutes: float | None,
    quick: bool,
    prompts: tuple[str, ...] | None,
    output: Path | None,
    as_json: bool,
    parameters: dict[str, Any],
) -> None:
    """Find the sets, staging and threads with which MODEL generates fastest here.

    Many settings get short runs, the better half longer ones, and the two that are left meet
    today's settings, those that serve would take with the same options, in turns. Each run is a
    process of its own, on texts that come with miractl or your own. A profile is written if
    something beats today's settings by more than the measurements differ among themselves. Ctrl-C
    ends with the best so far. Exit codes: 0 done, 130 after Ctrl-C.

    \b
    Examples:
      miractl tune --quick
      miractl tune ./Qwen3-30B-A3B --expert-memory 8GiB -o qwen.yaml
      miractl serve ./Qwen3-30B-A3B --expert-memory 8GiB --profile ./qwen.yaml
    """
    from miractl.config import given, resolve_parameters, resolve_runtime
    from miractl.profiles import load_profile

    if quick and minutes is not None:
        raise UsageError("--quick and --minutes both say how long", hint="one of the two")
    _check_target(output)
    out = Output(json=as_json)
    base = load_profile(profile)
    settings = resolve_parameters(base, parameters)
    layout = resolve_runtime(base, given(sets=sets, threads=threads))
    expert_memory = _asked_memory(model, expert_memory, out)
    options = _options(model, base, device, expert_memory, settings, layout, out)
    from miractl.cli.tune_search import Search

    search = Search(options, prompts or read_prompts(paths.DEMO_PROMPTS), out)
    try:
        _search(search, 60 * (minutes or (QUICK_MINUTES if quick else MINUTES)))
    except KeyboardInterrupt:
        _say_best(search)
        raise
    finally:
        clear_progress()
    written = _conclude(search, output, base, settings)
    outcome, shape = conclude(search.runs, search.today), search.shape
    if as_json:
        names = {"model": str(options["model_path"]), "device": search.facts["device"]}
        found = json_of(search.runs, shape, outcome)
        out.json({"schema": SCHEMA, **names, "profile": written and str(written), **found})
    else:
        out.data(f"{table_of(search.runs, shape, search.today)}\n\n{verdict(outcome, shape)}")
    if written is None:
        out.note("no profile written; -o FILE writes one with today's settings")
    else:
        out.note(f"wrote {written}; to use it:")
        out.note(f"  {_serve_line(model, written, expert_memory)}")


def _asked_memory(model: str | None, asked: str | None, out: Output) -> str | None:
    from miractl.cli.serve import check_expert_memory, expert_memory_for

    if asked is not None:
        check_expert_memory(asked)
    return expert_memory_for(model, asked, out)


def _options(
    model: str | None,
    base: "Profile",
    device: str,
    expert_memory: str | None,
    settings: "Mapping[str, Setting]",
    layout: "Mapping[str, Setting]",
    out: Output,
) -> dict[str, Any]:
    """Today's settings as the engine takes them, with the memory that serve would plan."""
    from miractl.cli.serve import check_device, locate
    from miractl.config import resolve_settings, values_of
    from miractl.plan.request import request_from
    from miractl.server.planned import plan_to_serve

    check_device(device)
    # Whatever a library wants to fetch, it is to be asked for.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    path, model_id = locate(model)
    request = request_from(
        settings,
        expert_memory=expert_memory,
        concurrency=resolve_settings({})["max_concurrency"].value,
        sets=layout["sets"].value,
    )
    plan = plan_to_serve(path, request, device, out.note)
    return {
        "model_path": path,
        "model_id": model_id,
        "parameters": values_of(settings),
        "profile": base.name,
        "device": device,
        "expert_memory": expert_memory if plan is None else f"{plan.require().arena_bytes}B",
        **values_of(layout),
    }


def _search(search: "Search", seconds: float) -> None:
    """Measure for so long, about. Raises MiractlError where there is nothing to choose from."""
    from miractl.cli.tune_search import refuse_nothing, thread_counts
    from miractl.plan.tuning import affordable, candidates, run_count

    begun = time.monotonic()
    pace = search.begin()
    shape, today, facts = search.shape, search.today, search.facts
    out = search.out
    every = candidates(shape, thread_counts(today.threads, facts["device"]), today)
    refuse_nothing(every, shape, search.options["model_id"])
    if shape.is_whole:
        out.note(f"all {shape.experts} experts fit: only the threads are tuned")
    tried, passages = affordable(every, pace, seconds - (time.monotonic() - begun))
    out.note(
        f"trying {len(tried)} of {len(every)} settings in {run_count(len(tried))} runs;"
        f" today: {candidate_words(today, shape)}"
    )
    search.search(tried, passages)


def _say_best(search: "Search") -> None:
    clear_progress()
    best = best_of(search.runs)
    if best is None:
        search.out.note("interrupted before anything was compared")
        return
    words = candidate_words(best.candidate, search.shape)
    search.out.note(
        f"interrupted in round {search.runs[-1].round}; best so far, as of round {best.round}:"
        f" {words}: {best.median:.4g} tokens/s; no profile written"
    )


def _check_target(output: Path | None) -> None:
    """Raise UsageError for a file that could not be written in the end."""
    if output is None and Path(DEFAULT_FILE).exists():
        raise UsageError(f"{DEFAULT_FILE} is there already", hint="-o FILE says where to write")
    if output is not None:
        check_target(output)
    if output is not None and output.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--output: {str(output)!r} does not end in .yaml", hint="-o tuned.yaml")


def _conclude(
    search: "Search", output: Path | None, base: "Profile", settings: "Mapping[str, Setting]"
) -> Path | None:
    """Write the profile, if something is faster or it was asked for; where it is."""
    from miractl.plan.tuned import layout_of, tuned_profile, write_profile
    from miractl.probe.snapshot import take

    outcome = conclude(search.runs, search.today)
    if output is None and not outcome.is_worth_it:
        return None
    target = output or Path(DEFAULT_FILE)
    won = outcome.best if outcome.is_worth_it else outcome.today
    gain = gain_words(outcome) if outcome.is_worth_it else "nothing beat"
    facts, machine = search.facts, take()
    on_gpu = facts["device"] != "cpu"
    gpu = machine.nvml.gpus[0] if on_gpu and machine.nvml and machine.nvml.gpus else None
    profile = tuned_profile(
        target.stem,
        f"{search.options['model_id']} with {facts['slots']} of {facts['experts']} experts in"
        f" memory, on {machine_words(machine, gpu)}",
        base,
        settings,
        layout_of(won.candidate, search.shape, has_threads=not on_gpu),
        f"measured by miractl tune {date.today()}, {gain} profile {base.name}",
        gpu,
    )
    write_profile(target, profile)
    return target


def _serve_line(model: str | None, profile: Path, expert_memory: str | None) -> str:
    file = str(profile) if len(profile.parts) > 1 else f"./{profile}"
    words = ["miractl", "serve", *([model] if model else []), "--profile", file]
    return shlex.join(words + (["--expert-memory", expert_memory] if expert_memory else []))
