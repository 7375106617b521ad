"""One generation: what is asked of a back-end, and what it reports."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. `temperature` 0 is greedy; seed None is a fresh one."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)  # token id -> addend


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt and its limits. `id` is ours: a client's request id may repeat."""

    id: str
    prompt: list[int]
    max_new_tokens: int
    eos: frozenset[int]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Progress:
    """News of a job: its tokens so far beyond those reported before, its end, its failure."""

    tokens: list[int]
    finished: bool
    error: str | None = None


Deliver = Callable[[Progress], None]


class Backend(Protocol):
    """Runs jobs. `submit` and `cancel` are called on the event loop, where `deliver` runs too."""

    name: str

    def submit(self, job: Job, deliver: Deliver) -> None:
        """Start a job. Raises RuntimeError when the back-end cannot run."""

    def cancel(self, job_id: str) -> None:
        """Forget a job: no further report. Unknown and finished ids are fine."""

    def failure(self) -> str | None:
        """Why no job can run, or None."""

    def close(self, timeout: float) -> None:
        """Stop; jobs that run are given up. Waits at most `timeout` seconds."""
