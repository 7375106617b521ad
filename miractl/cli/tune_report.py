"""What `miractl tune` says in the end: a table, a verdict, JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from miractl.output import table
from miractl.plan.tuning import Candidate, Outcome, Run, Shape, Trial, trials
from miractl.probe.devices import Gpu
from miractl.probe.facts import HardwareSnapshot
from miractl.units import format_share


def candidate_words(candidate: Candidate, shape: Shape) -> str:
    """`3 sets x 14 ways, 2 staged, 1 thread`; only the threads where all experts fit."""
    threads = _counted(candidate.threads, "thread")
    if shape.is_whole:
        return threads
    staged = f"{candidate.staged} staged" if candidate.staged else "no prefetch"
    ways = _counted(candidate.ways(shape), "way")
    return f"{_counted(candidate.sets, 'set')} x {ways}, {staged}, {threads}"


def machine_words(machine: HardwareSnapshot, gpu: Gpu | None) -> str:
    """What a profile says of the machine that it was measured on."""
    if gpu is not None:
        return gpu.name or "a GPU"
    cpu = machine.cpu
    if cpu is None:
        return "a CPU"
    return f"{_counted(cpu.recommended_threads, 'core')} of {cpu.model or 'a CPU'}"


def latest(runs: Sequence[Run]) -> list[Trial]:
    """Each candidate's last trial, the furthest and fastest first."""
    last = {trial.candidate: trial for trial in trials(runs)}
    return sorted(last.values(), key=lambda trial: (-trial.round, -trial.median))


def table_of(runs: Sequence[Run], shape: Shape, today: Candidate) -> str:
    """One line a candidate."""
    rows = [
        (
            *(one.sets, one.ways(shape), one.staged, one.threads)[3 * shape.is_whole :],
            f"{trial.median:.4g}",
            "n/a" if trial.spread is None else f"±{format_share(trial.spread)}",
            trial.round,
            "today" if one == today else "",
        )
        for trial in latest(runs)
        for one in (trial.candidate,)
    ]
    headers = ("sets", "ways", "staged", "threads")[3 * shape.is_whole :]
    return table(rows, (*headers, "tokens/s", "spread", "round", ""))


def gain_words(outcome: Outcome) -> str:
    """`+8.0 % over`, to go on with over what."""
    return f"{100 * (outcome.gain - 1):+.1f} % over"


def verdict(outcome: Outcome, shape: Shape) -> str:
    """What came out, in a sentence or two."""
    best, today = outcome.best, outcome.today
    spread = f"the measurements differ by ±{format_share(outcome.noise)}"
    if best.candidate == today.candidate:
        return f"today's settings are the fastest that were found: {today.median:.4g} tokens/s"
    words = candidate_words(best.candidate, shape)
    gain = f"{best.median:.4g} tokens/s, {gain_words(outcome)} today's {today.median:.4g}"
    if outcome.is_worth_it:
        return f"fastest: {words}: {gain}; {spread}"
    return f"nothing beats today's settings beyond the spread: {words} gave {gain}, while {spread}"


def json_of(runs: Sequence[Run], shape: Shape, outcome: Outcome) -> dict[str, Any]:
    """Everything, for programs."""
    best, today = outcome.best, outcome.today
    return {
        "shape": asdict(shape),
        "today": asdict(today.candidate),
        "best": asdict(best.candidate),
        "gain": outcome.gain,
        "noise": outcome.noise,
        "worth_it": outcome.is_worth_it,
        "trials": [
            {
                **asdict(trial.candidate),
                "ways": None if shape.is_whole else trial.candidate.ways(shape),
                "round": trial.round,
                "tokens_per_second": list(trial.samples),
                "median": trial.median,
                "spread": trial.spread,
            }
            for trial in trials(runs)
        ],
    }


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
