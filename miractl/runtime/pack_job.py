"""One pack: what is made of what, where, and whether one that was begun goes on.

A job notes in its folder what it is for. What is there from another source, or with other options,
is not gone on with.
"""

import errno
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miractl import __version__
from miractl.checkpoint.header import TensorRange
from miractl.checkpoint.inspection import inspect_folder
from miractl.checkpoint.packed import (
    AS_IS,
    DIGEST_BYTES,
    DIGESTS,
    FORMAT,
    MANIFEST,
    RECORDS,
    Manifest,
    dense_to_json,
    hash_file,
)
from miractl.checkpoint.record import record_to_json
from miractl.errors import MiractlError
from miractl.runtime.dense import dense_shapes
from miractl.runtime.loading import Checkpoint
from miractl.runtime.outline import read_outline
from miractl.runtime.recipe import Recipe, make_recipe
from miractl.runtime.source import CheckpointSource
from miractl.runtime.workplace import write_json
from miractl.units import format_bytes

JOB, CONFIG = "job.json", "config.json"


@dataclass(frozen=True, slots=True)
class Job:
    """One pack, and where it is made."""

    folder: Path
    target: Path
    partial: Path
    checkpoint: Checkpoint
    recipe: Recipe
    manifest: Manifest  # without its files' hashes

    @property
    def copied(self) -> dict[str, TensorRange]:
        """Everything but the experts and what becomes int8; a tied head's embedding stays."""
        left = self.checkpoint.ranges_of(self.manifest.dense)
        return {n: p for n, p in self.checkpoint.other_ranges.items() if p not in left}

    @property
    def identity(self) -> dict[str, Any]:
        """What has to be the same when an interrupted job goes on."""
        paths = sorted({part.file for part in self.checkpoint.ranges.values()})
        stats = [(path.name, path.stat()) for path in paths]
        return {
            "version": FORMAT,
            "kind": self.manifest.kind,
            "miractl": __version__,
            "record": record_to_json(self.recipe.record),
            "dense": dense_to_json(self.manifest.dense),
            "source": dict(self.manifest.source),
            "files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats],
        }


def prepare(folder: Path, target: Path, kind: str, dense: str) -> Job:
    """Look at a source, write nothing. Raises MiractlError where it cannot be packed so."""
    inspect_folder(folder).refuse()
    outline = read_outline(folder)
    checkpoint = Checkpoint(folder, outline)
    source = checkpoint.source
    assert isinstance(source, CheckpointSource)  # a packed folder has been refused
    recipe = make_recipe(kind, outline, source)
    partial = target.with_name(f"{target.name}.partial")
    manifest = Manifest(
        folder=partial,
        kind=kind,
        layers=outline.layers,
        experts=outline.experts,
        record=recipe.record,
        source=describe_source(folder, checkpoint),
        files={},
        dense=dense_shapes(outline.model) if dense != AS_IS else {},
    )
    return Job(folder, target, partial, checkpoint, recipe, manifest)


def describe_source(folder: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    """What the records were made from: config, sizes and headers, which cost nothing to hash."""
    places = [
        [name, part.file.name, part.start, part.dtype, list(part.shape)]
        for name, part in sorted(checkpoint.ranges.items())
    ]
    paths = sorted({part.file for part in checkpoint.ranges.values()})
    return {
        "name": folder.resolve().name,
        "model_type": checkpoint.outline.config.model_type,
        "miractl": __version__,
        "config_sha256": hash_file(folder / CONFIG),
        "headers_sha256": hashlib.sha256(json.dumps(places).encode()).hexdigest(),
        "files": {path.name: path.stat().st_size for path in paths},
    }


def check_space(job: Job) -> None:
    """Raise MiractlError if what is still to be written does not fit."""
    held = sum(path.stat().st_blocks * 512 for path in job.partial.iterdir())
    rest = sum(part.nbytes for part in job.copied.values())
    rest += sum(shape.nbytes for shape in job.manifest.dense.values())
    need = max(0, job.manifest.nbytes + rest - held)
    free = shutil.disk_usage(job.partial).free
    if need > free:
        if not held:
            job.partial.rmdir()
        raise MiractlError(
            f"the pack needs {format_bytes(need)}, {format_bytes(free)} is free in "
            f"{job.target.parent}",
            hint=_smaller(job),
        )


def _smaller(job: Job) -> str:
    """Where a pack has room, and which options that were not used make it smaller."""
    options = ["--experts int4"] if job.manifest.kind != "int4" else []
    if not job.manifest.dense and dense_shapes(job.checkpoint.outline.model):
        options.append("--dense int8")
    return "pack to another disk" + (f", or with {' '.join(options)}" if options else "")


def begin(job: Job) -> None:
    """Note what the folder is for, or check that it is for the same; reserve the records."""
    path, wanted = job.partial / JOB, job.identity
    begun = _begun(job.partial)
    if begun is None and any(entry.name != f"{JOB}.new" for entry in job.partial.iterdir()):
        raise MiractlError(f"{job.partial} is there and not from an interrupted pack")
    if begun is not None and any(wanted[name] != value for name, value in begun.items()):
        raise MiractlError(
            f"{job.partial} was begun from another source or with other options",
            hint=f"rm -r {job.partial}",
        )
    write_json(path, wanted)
    for name, size in (
        (RECORDS, job.manifest.nbytes),
        (DIGESTS, job.manifest.count * DIGEST_BYTES),
    ):
        with (job.partial / name).open("ab") as file:
            _reserve(file.fileno(), size)


def _begun(partial: Path) -> dict[str, Any] | None:
    """What an interrupted job noted; of one that was all but done, what its manifest says."""
    if (partial / JOB).exists():
        noted: dict[str, Any] = json.loads((partial / JOB).read_text(encoding="utf-8"))
        return noted
    if not (partial / CONFIG).exists():
        return None
    manifest = json.loads((partial / MANIFEST).read_text(encoding="utf-8"))
    return {name: manifest[name] for name in ("version", "kind", "record", "dense", "source")}


def _reserve(descriptor: int, size: int) -> None:
    """Take the space now, so that a full disk shows before the work."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(descriptor, size)
