"""Packing a model: every expert becomes one record, everything else is copied.

All work happens in `TARGET.partial`, which nothing serves: its config.json comes last, and then the
folder gets its name. A record is believed after an interruption only if its digest, written after
it, fits its bytes. Threads are enough: reading, decoding and quantising all let go of the
interpreter's lock.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from miractl import __version__
from miractl.checkpoint.header import TensorRange
from miractl.checkpoint.inspection import inspect_folder
from miractl.checkpoint.packed import (
    AS_IS,
    DENSE,
    DIGEST_BYTES,
    DIGESTS,
    FORMAT,
    MANIFEST,
    RECORDS,
    Manifest,
    dense_to_json,
    hash_file,
    refuse_packing,
)
from miractl.checkpoint.record import record_to_json
from miractl.errors import MiractlError
from miractl.probe import cpu
from miractl.probe.machine import Machine
from miractl.runtime.card import CARD, SOURCE_CARD, write_card
from miractl.runtime.dense import dense_shapes
from miractl.runtime.loading import Checkpoint
from miractl.runtime.outline import read_outline
from miractl.runtime.recipe import Recipe, codes, make_recipe
from miractl.runtime.record_file import RecordFile
from miractl.runtime.rest import plan_shards, write_shard, write_tensors
from miractl.runtime.source import CheckpointSource
from miractl.runtime.workplace import disk_errors, one_torch_thread, own_folder
from miractl.units import format_bytes

JOB, CONFIG = "job.json", "config.json"
SMALL = (".json", ".txt", ".model", ".jinja", ".tiktoken")  # tokenizer, configs, templates
LEGAL = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")

Progress = Callable[[int, int], None]  # records done, of how many


@dataclass(frozen=True, slots=True)
class _Job:
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


def pack(
    folder: Path,
    target: Path,
    kind: str,
    *,
    dense: str = AS_IS,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Pack the model of `folder` into the new folder `target`; goes on where it was interrupted.

    Raises MiractlError for a faulty source, experts that cannot be packed so, a target that is
    there, and too little space.
    """
    refuse_packing(folder, target)
    job = _prepare(folder, target, kind, dense)
    try:
        with own_folder(job.partial), disk_errors(job.partial), one_torch_thread():
            _check_space(job)
            _begin(job)
            _write_records(job, threads or cpu.probe(Machine()).threads, progress)
            _write_others(job)
            manifest = _finish(job)
    finally:
        job.checkpoint.source.close()
    return replace(manifest, folder=target)


def _prepare(folder: Path, target: Path, kind: str, dense: str) -> _Job:
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
    return _Job(folder, target, partial, checkpoint, recipe, manifest)


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


# --- the folder -----------------------------------------------------------------------------------


def _check_space(job: _Job) -> None:
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


def _smaller(job: _Job) -> str:
    """Where a pack has room, and which options that were not used make it smaller."""
    options = ["--experts int4"] if job.manifest.kind != "int4" else []
    if not job.manifest.dense and dense_shapes(job.checkpoint.outline.model):
        options.append("--dense int8")
    return "pack to another disk" + (f", or with {' '.join(options)}" if options else "")


def _begin(job: _Job) -> None:
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
    _write_json(path, wanted)
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


def _write_json(path: Path, data: Any) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(new, path)


# --- records --------------------------------------------------------------------------------------


def _write_records(job: _Job, threads: int, progress: Progress | None) -> None:
    records, count = RecordFile(job.manifest, job.recipe), job.manifest.count
    try:
        with ThreadPoolExecutor(threads, "miractl-pack") as pool:
            made = [pool.submit(records.write, number) for number in range(count)]
            try:
                for done, future in enumerate(as_completed(made), start=1):
                    future.result()
                    if progress is not None:
                        progress(done, count)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        records.close()


# --- everything else ------------------------------------------------------------------------------


def _write_others(job: _Job) -> None:
    """The other tensors, then all small files but the configuration."""
    dense = job.manifest.dense
    if dense and not (job.partial / DENSE).exists():
        _write_dense(job)
    for name, tensors in plan_shards(job.copied).items():
        if not (job.partial / name).exists():  # a shard gets its name when it is whole
            write_shard(job.partial / name, tensors)
    for path in sorted(job.folder.iterdir()):
        if path.name == CARD:
            shutil.copyfile(path, job.partial / SOURCE_CARD)
        elif path.is_file() and path.name != CONFIG and _is_small(path.name):
            shutil.copyfile(path, job.partial / path.name)


def _write_dense(job: _Job) -> None:
    """The int8 blocks, one matrix after the other."""
    shapes, checkpoint = job.manifest.dense, job.checkpoint

    def block(name: str) -> list[bytes]:
        own = name if checkpoint.ranges_of([name]) else checkpoint.outline.embedding
        return [codes(name, checkpoint.numbers(own).float(), shapes[name]).tobytes()]

    sizes = {name: shape.nbytes for name, shape in shapes.items()}
    kinds = {name: ("U8", (size,)) for name, size in sizes.items()}
    write_tensors(job.partial / DENSE, kinds, sizes, block)


def _is_small(name: str) -> bool:
    own = name in (MANIFEST, JOB, CARD, SOURCE_CARD) or name.endswith(".index.json")
    return not own and (name.endswith(SMALL) or name.upper().startswith(LEGAL))


def _finish(job: _Job) -> Manifest:
    """Manifest, card and, last, the configuration and the folder's own name."""
    skipped = (RECORDS, JOB, MANIFEST, CARD, CONFIG)
    names = sorted(p.name for p in job.partial.iterdir() if p.suffix != ".new")
    files = {name: hash_file(job.partial / name) for name in names if name not in skipped}
    files[CONFIG] = hash_file(job.folder / CONFIG)
    manifest = replace(job.manifest, files=files)
    write_card(job.partial, manifest)
    _write_json(job.partial / MANIFEST, manifest.to_json())
    shutil.copyfile(job.folder / CONFIG, job.partial / f"{CONFIG}.new")
    os.replace(job.partial / f"{CONFIG}.new", job.partial / CONFIG)
    for stray in (JOB, *(p.name for p in job.partial.glob("*.new"))):
        (job.partial / stray).unlink(missing_ok=True)
    for path in job.partial.iterdir():
        _sync(path)
    _sync(job.partial)
    os.rename(job.partial, job.target)
    _sync(job.target.parent)
    return manifest


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
