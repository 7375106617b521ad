"""The search of `miractl tune`, run by run: what is measured, and what is said meanwhile."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from miractl.cli.progress import clear_progress, show_progress
from miractl.cli.tune_report import candidate_words
from miractl.errors import MiractlError
from miractl.output import Output
from miractl.plan import tuning
from miractl.plan.tuning import Candidate, Pace, Run, Shape
from miractl.runtime import trial


@dataclass(slots=True)
class Search:
    """One search; `options` are today's settings, as EngineOptions has them."""

    options: dict[str, Any]
    prompts: Sequence[str]
    out: Output
    facts: dict[str, Any] = field(default_factory=dict)  # of the first run
    runs: list[Run] = field(default_factory=list)

    @property
    def shape(self) -> Shape:
        """What the candidates divide."""
        from miractl.native import available

        sizes = {name: self.facts[name] for name in ("layers", "experts", "top_k", "slots")}
        return Shape(**sizes, bets=available())

    @property
    def today(self) -> Candidate:
        """How it runs with today's settings."""
        return Candidate(*(self.facts[name] for name in ("sets", "staged", "threads")))

    def begin(self) -> Pace:
        """Run today's settings twice, for what they come to and for how long a run takes."""
        self.out.note("loading once to see what there is to tune")
        first = trial.run(self.options, self.prompts, 1)
        self.facts = first.facts
        passages = max(2, int(tuning.LEAST_SECONDS / first.seconds))
        begun = time.monotonic()
        second = trial.run(self.options, self.prompts, passages)
        passage = second.seconds / passages
        # The passage that does not count belongs to the time of loading.
        return Pace(max(0.0, time.monotonic() - begun - second.seconds), passage)

    def search(self, tried: Sequence[Candidate], passages: int) -> None:
        """Measure the candidates, saying what each run gave."""
        count = tuning.run_count(len(tried))
        show_progress("runs", 0, count)
        for run in tuning.search(tried, self.today, self.measure, passages):
            self.runs.append(run)
            clear_progress()
            words = candidate_words(run.candidate, self.shape)
            place = f"round {run.round}, {run.place} of {run.count}"
            self.out.note(f"{place}: {words}: {run.rate:.4g} tokens/s")
            show_progress("runs", len(self.runs), count)

    def measure(self, candidate: Candidate, passages: int) -> float:
        """Tokens a second of a candidate. Raises MiractlError if it cannot run."""
        values = dict(self.options["parameters"], prefetch=candidate.staged > 0)
        if candidate.staged:
            values["max_staged_experts"] = candidate.staged
        layout = {"sets": candidate.sets, "threads": candidate.threads}
        options = {**self.options, "parameters": values, **layout}
        return trial.run(options, self.prompts, passages).rate


def thread_counts(today: int, device: str) -> tuple[int, ...]:
    """Threads to try: one, half the cores and all; today's alone where there is no choice."""
    from miractl.probe import cpu
    from miractl.probe.machine import Machine

    processors = cpu.probe(Machine())
    if device != "cpu" or processors.omp_num_threads is not None:
        return (today,)
    most = processors.recommended_threads
    return tuple(sorted({1, max(1, most // 2), most, today}))


def refuse_nothing(tried: Sequence[Candidate], shape: Shape, model: str) -> None:
    """Raise MiractlError where there is nothing to choose from."""
    if len(tried) > 1:
        return
    if shape.is_whole:
        raise MiractlError(
            f"all {shape.experts} experts of {model} fit, so only the threads could be tuned, and"
            f" these are fixed at {tried[0].threads}",
            hint="unset OMP_NUM_THREADS, or less --expert-memory",
        )
    raise MiractlError(
        f"{shape.slots} slots leave no choice of sets and staging for the top {shape.top_k} of"
        f" {shape.layers} layers",
        hint="more --expert-memory",
    )
