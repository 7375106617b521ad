"""`miractl bench decode`: tokens a second."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from miractl.cli.link import link_options
from miractl.cli.options import (
    json_option,
    parameter_options,
    profile_option,
    runtime_options,
    setting_option,
)
from miractl.cli.progress import clear_progress, show_progress
from miractl.cli.prompts import prompts_option
from miractl.output import Output, table
from miractl.paths import DEMO_MODEL
from miractl.probe.spread import Spread
from miractl.units import counted, format_bytes, format_rate, format_share

if TYPE_CHECKING:
    from miractl.runtime.speed import Contender

SCHEMA = "miractl.bench.decode/1"
OURS, STOCK = "miractl", "transformers"  # as miractl.runtime.speed names them
PARTS = ("prefill", "decode")


@click.command()
@click.argument("model", required=False, type=click.Path(path_type=Path))
@profile_option
@setting_option("device", "expert_memory")
@click.option("--dtype", default="auto", show_default=True, help="auto, float32 or bfloat16.")
@click.option(
    "--prompt-tokens", type=click.IntRange(1), default=256, show_default=True, help="Of a round."
)
@click.option(
    *("--tokens", "new_tokens"),
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="To generate after the prompt.",
)
@click.option("--repeat", type=click.IntRange(1), default=5, show_default=True, help="Rounds.")
@prompts_option
@runtime_options
@click.option(
    "--against",
    type=click.Choice([STOCK]),
    help="Run the stock model with the same numbers, too, in turns.",
)
@link_options
@json_option
@parameter_options
def decode(
    model: Path | None,
    profile: str,
    device: str,
    expert_memory: str | None,
    dtype: str,
    prompt_tokens: int,
    new_tokens: int,
    repeat: int,
    prompts: tuple[str, ...] | None,
    sets: int | None,
    threads: int | None,
    against: str | None,
    emulate_link: float | None,
    host_compute: str | None,
    as_json: bool,
    parameters: dict[str, Any],
) -> None:
    """Measure how fast MODEL reads prompts and generates tokens, one request at a time.

    MODEL is the bundled demo model unless given. Prompts are random tokens, which reach more
    experts than text does, or the paragraphs of a file; each round has another one. Processor time
    counts all threads.

    \b
    Examples:
      miractl bench decode
      miractl bench decode ./packed --expert-memory 40% --threads 2
      miractl bench decode ./my-model --against transformers --json
    """
    from miractl.checkpoint.folder import require_model
    from miractl.config import given, resolve_parameters, resolve_runtime, values_of
    from miractl.profiles import load_profile

    folder = model or DEMO_MODEL
    require_model(folder, "miractl bench decode ./my-model")
    loaded, out = load_profile(profile), Output(json=as_json)

    from miractl.runtime.engine import EngineOptions  # torch takes seconds
    from miractl.runtime.speed import contenders_of, measure, random_prompts, text_prompts
    from miractl.runtime.tokenizer import load_tokenizer, quiet_transformers

    quiet_transformers()
    layout = values_of(resolve_runtime(loaded, given(sets=sets, threads=threads)))
    options = EngineOptions(
        *(folder, folder.name, values_of(resolve_parameters(loaded, parameters))),
        profile=profile, device=device, dtype=dtype, expert_memory=expert_memory,
        with_tokenizer=False, emulate_link=emulate_link, host_compute=host_compute, **layout,
    )  # fmt: skip
    with contenders_of(options, against is not None) as (contenders, facts):
        if prompts is None:
            rounds = random_prompts(contenders[OURS].model, prompt_tokens, repeat + 1)
        else:
            rounds = text_prompts(load_tokenizer(folder), prompts, prompt_tokens, repeat + 1)
        try:
            measure(contenders, rounds, new_tokens, show_progress)
        finally:
            clear_progress()
    facts |= {"prompt_tokens": prompt_tokens, "tokens": new_tokens, "rounds": repeat}
    if as_json:
        found = {name: _facts(contender) for name, contender in contenders.items()}
        out.json({"schema": SCHEMA, "model": str(folder), **facts, "contenders": found})
        return
    out.data(
        f"{folder.name} on {facts['device']} in {facts['dtype']}, "
        f"{counted(facts['threads'], 'thread')}, "
        f"sets x ways {facts['sets']} x {facts['ways']}: "
        f"{facts['slots']} of {facts['experts']} experts in "
        f"{format_bytes(facts['expert_memory_bytes'])}{_link(emulate_link)}"
    )
    out.data(_words(contenders))


def _link(rate: float | None) -> str:
    return "" if rate is None else f" behind an emulated link of {format_rate(rate)}"


def _rates(contender: "Contender", part: str, cpu: bool) -> Spread:
    laps = getattr(contender, part)
    return Spread.of([lap.cpu_rate if cpu else lap.rate for lap in laps])


def _ratio(ours: "Contender", theirs: "Contender", part: str) -> float:
    return _rates(ours, part, cpu=False).median / _rates(theirs, part, cpu=False).median


def _facts(contender: "Contender") -> dict[str, object]:
    use = contender.cache_use
    facts: dict[str, object] = {
        part: {
            "tokens_per_second": dataclasses.asdict(_rates(contender, part, cpu=False)),
            "tokens_per_cpu_second": dataclasses.asdict(_rates(contender, part, cpu=True)),
        }
        for part in PARTS
    }
    return {**facts, "cache": None if use is None else dataclasses.asdict(use)}


def _words(contenders: "dict[str, Contender]") -> str:
    rows = []
    for name, contender in contenders.items():
        for part in PARTS:
            wall = _rates(contender, part, cpu=False)
            figures = [f"{value:.4g}" for value in (wall.median, wall.low, wall.high)]
            rows.append((name, part, *figures, f"{_rates(contender, part, cpu=True).median:.4g}"))
    headers = ("", "", "tokens/s", "lowest", "highest", "a CPU second")
    lines = [table(rows, headers)]
    if (use := contenders[OURS].cache_use) is not None:
        lines.append(
            f"cache hits while generating {format_share(use.hit_rate)}, "
            f"{format_bytes(use.bytes_per_token)} a token brought in"
        )
    if STOCK in contenders:
        ours, stock = contenders[OURS], contenders[STOCK]
        ratios = [f"{part} {_ratio(ours, stock, part):.2f}" for part in PARTS]
        lines.append(f"times {STOCK}: {', '.join(ratios)}")
    return "\n".join(lines)
