"""What a brain keeps from one run to the next: heat, uses, and what a learner has learned.

One .npz file a model: `version`, `model` (a JSON object, equal for equal models), `heat` and
`activations` [MoE layers, experts], the learner's tables under their names, and those of predictors
with `guesses.` before them. Or, to be read only, a CSV file as `miractl heat export` writes it.
"""

import csv
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from miractl.errors import UsageError
from miractl.outfile import write_whole
from miractl.units import counted

VERSION = 1
GUESSES = "guesses."  # before the names of predictors' tables
MOST_COUNTED = 2**53  # tokens of an expert: more are no count of a run


@dataclass(frozen=True, slots=True)
class Identity:
    """Of which model something is remembered."""

    family: str
    layers: tuple[int, ...]  # the model's own indices of its MoE layers
    experts: int
    top_k: int
    digest: str  # of its configuration and its routers

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file."""
        return {
            "family": self.family,
            "layers": list(self.layers),
            "experts": self.experts,
            "top_k": self.top_k,
            "digest": self.digest,
        }

    def __str__(self) -> str:
        return (
            f"{self.family} of {len(self.layers)} x {self.experts} experts, {self.top_k} a token,"
            f" {self.digest}"
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """Heat and tokens of each expert, [layers, experts], and tables by name.

    `tables` are those of the learner, `guesses` those of predictors.
    """

    heat: npt.NDArray[np.float64]
    activations: npt.NDArray[np.int64]
    tables: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    guesses: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    def describe(self, top_k: int) -> str:
        """What is in it, and of how many tokens, `top_k` experts each."""
        what = (
            "heat, counts and what was learned"
            if self.tables or self.guesses
            else "heat and counts"
        )
        tokens = int(self.activations[0].sum()) // top_k
        return f"{what} of {counted(tokens, 'token')}"


def writable(path: Path) -> bool:
    """Whether what is remembered goes back into this file."""
    return path.suffix.lower() != ".csv"


def read_memory(path: Path, identity: Identity) -> Memory | None:
    """What the file remembers of the model; None if it is not there yet and can be written.

    Raises UsageError for a file of another model or none of ours: it would be overwritten.
    """
    if not writable(path):
        return _from_csv(path, identity)
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file) as data:
            arrays = {name: data[name] for name in data.files}
        version, model = int(arrays.pop("version")), json.loads(str(arrays.pop("model")))
        heat, activations = arrays.pop("heat"), arrays.pop("activations")
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or "damaged, or not written by miractl"
        raise _refusal(path, reason) from None
    if version != VERSION:
        raise _refusal(path, f"version {version}, this miractl reads {VERSION}")
    if model != identity.to_json():
        raise _refusal(path, f"belongs to another model than this ({identity})")
    shape = len(identity.layers), identity.experts
    if heat.shape != shape or activations.shape != shape or not _finite(heat, arrays):
        raise _refusal(path, "damaged")
    _refuse_counts(path, activations)
    guesses = {name: arrays.pop(name) for name in list(arrays) if name.startswith(GUESSES)}
    return Memory(
        *(heat.astype(np.float64), activations.astype(np.int64), arrays),
        guesses={name.removeprefix(GUESSES): array for name, array in guesses.items()},
    )


def write_memory(path: Path, identity: Identity, memory: Memory) -> None:
    """Write the file whole or not at all. Raises MiractlError."""
    arrays: dict[str, Any] = {
        **memory.tables,
        **{f"{GUESSES}{name}": array for name, array in memory.guesses.items()},
        "version": np.array(VERSION),
        "model": np.array(json.dumps(identity.to_json())),
        "heat": memory.heat,
        "activations": memory.activations,
    }
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_whole(path, content.getvalue())


def _refusal(path: Path, reason: str) -> UsageError:
    return UsageError(
        f"warm heat {path}: {reason}", hint="name another file, or move this one away"
    )


def _finite(heat: npt.NDArray[Any], tables: Mapping[str, npt.NDArray[Any]]) -> bool:
    return all(
        array.dtype.kind == "f" and bool(np.isfinite(array).all())
        for array in (heat, *tables.values())
    )


def _refuse_counts(path: Path, activations: npt.NDArray[Any]) -> None:
    if activations.dtype.kind not in "iu":
        raise _refusal(path, f"damaged: tokens of an expert are {activations.dtype}")
    for count in (int(activations.min()), int(activations.max())):
        if not 0 <= count <= MOST_COUNTED:
            raise _refusal(path, f"damaged: {count} tokens of an expert")


def _from_csv(path: Path, identity: Identity) -> Memory:
    shape = len(identity.layers), identity.experts
    heat, activations = np.zeros(shape), np.zeros(shape, np.int64)
    index = {layer: at for at, layer in enumerate(identity.layers)}
    try:
        with path.open(newline="") as file:
            rows: Sequence[dict[str, str]] = list(csv.DictReader(file))
        for row in rows:
            at = index[int(row["layer"])], int(row["expert"])
            heat[at], activations[at] = float(row["heat"]), int(row["activations"])
    except OSError as error:
        raise UsageError(f"warm heat {path}: {error.strerror}") from None
    except (KeyError, ValueError, IndexError, TypeError, OverflowError):
        raise _refusal(path, "no heat export of this model") from None
    if len(rows) != heat.size or not np.isfinite(heat).all():
        raise _refusal(path, f"{len(rows)} experts, this model has {heat.size}")
    _refuse_counts(path, activations)
    return Memory(heat, activations)
