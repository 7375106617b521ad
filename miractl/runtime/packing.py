"""Packing a model: every expert becomes one record, everything else is copied.

All work happens in `TARGET.partial`, which nothing serves: its config.json comes last, and then the
folder gets its name. A record is believed after an interruption only if its digest, written after
it, fits its bytes. Threads are enough: reading, decoding and quantising all let go of the
interpreter's lock.
"""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from miractl.checkpoint.packed import (
    AS_IS,
    DENSE,
    MANIFEST,
    RECORDS,
    Manifest,
    hash_file,
    refuse_packing,
)
from miractl.probe import cpu
from miractl.probe.machine import Machine
from miractl.runtime.card import CARD, SOURCE_CARD, write_card
from miractl.runtime.pack_job import CONFIG, JOB, Job, begin, check_space, prepare
from miractl.runtime.recipe import codes
from miractl.runtime.record_file import RecordFile
from miractl.runtime.rest import plan_shards, write_shard, write_tensors
from miractl.runtime.workplace import disk_errors, one_torch_thread, own_folder, write_json

SMALL = (".json", ".txt", ".model", ".jinja", ".tiktoken")  # tokenizer, configs, templates
LEGAL = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")

Progress = Callable[[int, int], None]  # records done, of how many


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
    job = prepare(folder, target, kind, dense)
    try:
        with own_folder(job.partial), disk_errors(job.partial), one_torch_thread():
            check_space(job)
            begin(job)
            _write_records(job, threads or cpu.probe(Machine()).threads, progress)
            _write_others(job)
            manifest = _finish(job)
    finally:
        job.checkpoint.source.close()
    return replace(manifest, folder=target)


def _write_records(job: Job, threads: int, progress: Progress | None) -> None:
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


def _write_others(job: Job) -> None:
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


def _write_dense(job: Job) -> None:
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


def _finish(job: Job) -> Manifest:
    """Manifest, card and, last, the configuration and the folder's own name."""
    skipped = (RECORDS, JOB, MANIFEST, CARD, CONFIG)
    names = sorted(p.name for p in job.partial.iterdir() if p.suffix != ".new")
    files = {name: hash_file(job.partial / name) for name in names if name not in skipped}
    files[CONFIG] = hash_file(job.folder / CONFIG)
    manifest = replace(job.manifest, files=files)
    write_card(job.partial, manifest)
    write_json(job.partial / MANIFEST, manifest.to_json())
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
