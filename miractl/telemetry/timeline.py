"""Where the time of the last steps went, and what moved meanwhile.

A step is one pass through the model: a prompt or a part of it, or one new token for each running
request. Its time runs from the end of the step before, where the same requests went on, so that
what lies between two passes (choosing a token, scheduling, writing the answer) belongs to a step.
The parts are measured one after the other on the thread that runs the model: they add up to the
step, and `unmeasured` is what is left over.
"""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

SCHEMA = "miractl.timeline/1"

# In the order of a step; what each one is, in words.
PARTS = {
    "between": "between passes: choosing tokens, scheduling, answering",
    "attention": "attention, norms and residuals, layers without experts",
    "router": "routers",
    "decide": "counting, deciding, asking the cache, betting",
    "hits": "experts that were there, computed",
    "waiting": "waiting for missing experts",
    "misses": "experts that came, computed",
    "sum": "the weighted sum over experts",
    "head": "last norm and output head",
}


@dataclass(frozen=True, slots=True)
class Moved:
    """Lookups of the cache, and what the transfers of the runtime brought.

    `copy_seconds` is the time with at least one transfer under way; it runs beside the parts.
    """

    hits: int = 0
    misses: int = 0
    late: int = 0
    disk_bytes: int = 0
    link_bytes: int = 0
    copy_seconds: float = 0.0

    def __add__(self, other: "Moved") -> "Moved":
        return Moved(*map(operator.add, _numbers(self), _numbers(other)))

    def __sub__(self, other: "Moved") -> "Moved":
        return Moved(*map(operator.sub, _numbers(self), _numbers(other)))


_numbers = operator.attrgetter(*(field.name for field in fields(Moved)))  # once a step: quick


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step. Times in seconds, `parts` by the names of PARTS.

    `os_bytes` is what the kernel fetched from storage for this process; None where it is mute.
    """

    step: int
    tokens: int
    sequences: int
    began: float  # unix seconds
    seconds: float
    parts: dict[str, float]
    moved: Moved
    os_bytes: int | None

    @property
    def is_prompt(self) -> bool:
        """Whether a sequence had more than one token in it."""
        return self.tokens > self.sequences


@dataclass(frozen=True, slots=True)
class Machine:
    """What the steps are held against. Rates in bytes a second, None for not measured.

    `dense_bytes` are read once a step, `expert_bytes` once for each expert of a layer that is used.
    """

    device: str
    threads: int
    dense_bytes: int
    expert_bytes: int
    memory_rate: float | None
    transfer_source: str  # "disk" or "host"
    transfer_rate: float | None  # the best that one transfer reached


@dataclass(frozen=True, slots=True)
class Timeline:
    """The last steps of a server, oldest first."""

    model: str
    machine: Machine
    steps: tuple[StepTimes, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict with the schema's name."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Undo `to_json`. Raises ValueError for another schema, KeyError for a lacking field."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"schema is {data.get('schema')!r}, expected {SCHEMA!r}")
        steps = tuple(StepTimes(**{**row, "moved": Moved(**row["moved"])}) for row in data["steps"])
        return cls(data["model"], Machine(**data["machine"]), steps)


@dataclass(frozen=True, slots=True)
class Account:
    """Steps of one kind together: totals over `steps`."""

    steps: int
    tokens: int
    seconds: float
    parts: dict[str, float]
    moved: Moved
    os_bytes: int | None

    @classmethod
    def of(cls, steps: Sequence[StepTimes]) -> Self:
        """Add up steps."""
        read = [step.os_bytes for step in steps if step.os_bytes is not None]
        return cls(
            steps=len(steps),
            tokens=sum(step.tokens for step in steps),
            seconds=sum(step.seconds for step in steps),
            parts={part: sum(step.parts.get(part, 0.0) for step in steps) for part in PARTS},
            moved=sum((step.moved for step in steps), Moved()),
            os_bytes=sum(read) if len(read) == len(steps) else None,
        )

    @property
    def unmeasured(self) -> float:
        """Seconds that belong to no part."""
        return self.seconds - sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class Bound:
    """The least seconds that one resource takes for these steps, from measured rates."""

    resource: str
    what: str
    bytes: int
    rate: float  # bytes a second
    seconds: float


def bounds(account: Account, machine: Machine) -> tuple[Bound, ...]:
    """Roofline of these steps, the longest first: each resource as if it had nothing to wait for.

    Memory: dense weights once a step and every used expert once, at the rate at which this
    machine's memory was read. Transfers: the bytes that were brought, at the best rate of one
    transfer. Resources whose rate is unknown are left out.
    """
    moved = account.moved
    used = moved.hits + moved.misses
    needed = account.steps * machine.dense_bytes + used * machine.expert_bytes
    brought = moved.disk_bytes + moved.link_bytes
    found = []
    for resource, what, amount, rate in (
        ("memory", "weights read by the kernels", needed, machine.memory_rate),
        (machine.transfer_source, "experts brought", brought, machine.transfer_rate),
    ):
        if rate:
            found.append(Bound(resource, what, amount, rate, amount / rate))
    return tuple(sorted(found, key=lambda bound: -bound.seconds))


def split(steps: Iterable[StepTimes]) -> tuple[list[StepTimes], list[StepTimes]]:
    """Steps with prompts, and those of one token a sequence."""
    both = list(steps)
    return [s for s in both if s.is_prompt], [s for s in both if not s.is_prompt]
