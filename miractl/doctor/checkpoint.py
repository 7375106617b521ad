"""What the doctor is told of a checkpoint. Whoever reads the files fills it in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointFault:
    """Something wrong with the files. `fatal`: they cannot be used as they are."""

    text: str
    remedy: str | None
    fatal: bool


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files and the bytes they come to, as stored. None: not known."""

    name: str
    files: int
    faults: tuple[CheckpointFault, ...]  # the fatal ones first
    resident_bytes: int | None  # everything but the routed experts
    expert_bytes: int | None  # all routed experts
    layer_bytes: int | None  # the experts that one token uses in one layer
