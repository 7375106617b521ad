"""`miractl bench decode`: tokens a second."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from miractl.cli.link import link_options
from miractl.cli.options import json_option, parameter_options, profile_option, setting_option
from miractl.cli.progress import clear_progress, show_progress
from miractl.errors import UsageError
from miractl.output import Output, table
from miractl.paths import DEMO_MODEL
from miractl.probe.spread import Spread
from miractl.units import format_bytes, format_rate, format_share

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
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="Of the CPU.  [default: as serve takes them]"
)
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
    threads: int | None,
    against: str | None,
    emulate_link: float | None,
    host_compute: str | None,
    as_json: bool,
    parameters: dict[str, Any],
) -> None:
    """Measure how fast MODEL reads prompts and generates tokens, one request at a time.

    MODEL is the bundled demo model unless given. Prompts are random tokens, which reach more
    experts than text does; each round has another one. Processor time counts all threads.

    \b
    Examples:
      miractl bench decode
      miractl bench decode ./packed --expert-memory 40% --threads 2
      miractl bench decode ./my-model --against transformers --json
    """
    folder = model or DEMO_MODEL
    if not folder.is_dir():
        raise UsageError(f"no model folder {str(folder)!r}", hint="miractl bench decode ./my-model")
    out = Output(json=as_json)
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)

    from miractl.config import resolve_parameters
    from miractl.profiles import load_profile
    from miractl.runtime.engine import EngineOptions, quiet_transformers  # torch takes seconds
    from miractl.runtime.speed import contenders_of, measure

    quiet_transformers()

    settings = resolve_parameters(load_profile(profile), parameters)
    options = EngineOptions(
        *(folder, folder.name, {name: setting.value for name, setting in settings.items()}),
        profile=profile, device=device, dtype=dtype, expert_memory=expert_memory,
        with_tokenizer=False, emulate_link=emulate_link, host_compute=host_compute,
    )  # fmt: skip
    with contenders_of(options, against is not None) as (contenders, facts):
        try:
            measure(contenders, prompt_tokens, new_tokens, repeat, show_progress)
        finally:
            clear_progress()
    facts |= {"prompt_tokens": prompt_tokens, "tokens": new_tokens, "rounds": repeat}
    if as_json:
        found = {name: _facts(contender) for name, contender in contenders.items()}
        out.json({"schema": SCHEMA, "model": str(folder), **facts, "contenders": found})
        return
    out.data(
        f"{folder.name} on {facts['device']} in {facts['dtype']}, {facts['threads']} threads: "
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
