"""Packing survives what happens to long jobs: kills, full disks, second starts."""

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from miractl.checkpoint.packed import DIGESTS, RECORDS, hash_file
from miractl.errors import MiractlError
from miractl.runtime import pack_job, packing, record_file, workplace
from miractl.runtime.engine import Engine
from miractl.runtime.packing import pack
from miractl.units import format_bytes
from tests.runtime.models import make_model, options

POINTS = ("posix_fallocate", "pwrite", "fsync", "replace", "rename")


class Killed(BaseException):
    """The end of the process, as far as a test in one process can have it."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "source"
    make_model(folder, "Qwen3Moe", moe_intermediate_size=64)
    return folder


@pytest.fixture(scope="module")
def expected(source: Path) -> dict[str, str]:
    pack(source, source.parent / "whole", "int4")
    return hashes(source.parent / "whole")


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hash_file(path) for path in sorted(folder.iterdir())}


def dying(monkeypatch: pytest.MonkeyPatch, after: int, death: BaseException) -> Callable[[], int]:
    """Let the calls to the system fail from the `after`-th on; returns what counts them."""
    calls = 0

    class System:
        """`os`, mortal."""

        def __getattr__(self, name: str) -> Any:
            real = getattr(os, name)
            if name not in POINTS:
                return real

            def call(*args: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > after:
                    if name == "pwrite":  # half of it got out
                        real(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
                    raise death
                return real(*args)

            return call

    for module in (packing, pack_job, record_file, workplace):
        monkeypatch.setattr(module, "os", System())
    return lambda: calls


def test_killed_at_every_stage_and_run_again_gives_the_same_bytes(
    tmp_path: Path, source: Path, expected: dict[str, str]
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        counted = dying(monkeypatch, 10**9, Killed())
        pack(source, tmp_path / "counted", "int4", threads=1)
        total = counted()
    chance = random.Random(20260101)
    stages = sorted({*chance.sample(range(total), 20), 0, total - 1, total - 2, total - 3})
    for after in stages:
        target = tmp_path / f"killed-{after}"
        with pytest.MonkeyPatch.context() as monkeypatch:
            dying(monkeypatch, after, Killed())
            with pytest.raises(Killed):
                pack(source, target, "int4", threads=1)
        if not target.exists():  # else only the last fsync was missing
            pack(source, target, "int4", threads=2)
        assert hashes(target) == expected, after


def test_killed_many_times_in_a_row(tmp_path: Path, source: Path, expected: dict[str, str]) -> None:
    target, deaths = tmp_path / "packed", 0
    while not target.exists():
        with pytest.MonkeyPatch.context() as monkeypatch:
            dying(monkeypatch, 9, Killed())
            try:
                pack(source, target, "int4")
            except Killed:
                deaths += 1
        if deaths > 12:
            pack(source, target, "int4")
    assert deaths > 1
    assert hashes(target) == expected


@pytest.mark.slow
def test_kill_9(tmp_path: Path, source: Path, expected: dict[str, str]) -> None:
    """A real one, when the first digests are on disk."""
    target, partial = tmp_path / "packed", tmp_path / "packed.partial"
    slowed = (
        "import time\nfrom miractl.runtime import packing, record_file\n"
        "write = record_file.write_all\n"
        "def slow(*args): time.sleep(0.1); write(*args)\n"
        "record_file.write_all = slow\n"
        f"from pathlib import Path; packing.pack(Path({str(source)!r}), Path({str(target)!r}), "
        "'int4', threads=2)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", slowed], env={**os.environ, "PYTHONPATH": "."}
    )
    try:
        for _ in range(1200):
            digests = partial / DIGESTS
            if digests.exists() and any(digests.read_bytes()):
                break
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not target.exists()
    assert not (partial / "config.json").exists()
    pack(source, target, "int4")
    assert hashes(target) == expected


def test_records_that_are_done_are_not_made_again(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "packed"
    with pytest.MonkeyPatch.context() as monkeypatch:
        dying(monkeypatch, 14, Killed())
        with pytest.raises(Killed):
            pack(source, target, "int4", threads=1)
    partial = tmp_path / "packed.partial"
    digests, records = (partial / DIGESTS).read_bytes(), (partial / RECORDS).read_bytes()
    done = sum(
        hashlib.sha256(records[8192 * n : 8192 * (n + 1)]).digest() == digests[32 * n : 32 * n + 32]
        for n in range(24)
    )
    made: list[int] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        write = record_file.write_all

        def counted(descriptor: int, data: memoryview, at: int) -> None:
            made.append(len(data))
            write(descriptor, data, at)

        monkeypatch.setattr(record_file, "write_all", counted)
        pack(source, target, "int4", threads=1)
    assert 0 < done < 24
    assert sum(size > 32 for size in made) == 24 - done


def test_a_damaged_record_of_an_interrupted_pack_is_made_again(
    tmp_path: Path, source: Path, expected: dict[str, str]
) -> None:
    target, partial = tmp_path / "packed", tmp_path / "packed.partial"
    with pytest.MonkeyPatch.context() as monkeypatch:
        dying(monkeypatch, 20, Killed())
        with pytest.raises(Killed):
            pack(source, target, "int4", threads=1)
    with (partial / RECORDS).open("r+b") as file:
        file.write(b"lost power")
    pack(source, target, "int4")
    assert hashes(target) == expected


def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing_to_serve(
    tmp_path: Path, source: Path, expected: dict[str, str]
) -> None:
    target = tmp_path / "packed"
    with pytest.MonkeyPatch.context() as monkeypatch:
        dying(monkeypatch, 12, OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(MiractlError, match="no space left for") as full:
            pack(source, target, "int4", threads=1)
    assert "\n" not in full.value.message
    assert full.value.hint is not None
    assert not target.exists()
    with pytest.raises(MiractlError, match=r"no config\.json|config\.json"):
        Engine.load(options(tmp_path / "packed.partial", None))
    pack(source, target, "int4")
    assert hashes(target) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_small_file_system(tmp_path: Path, source: Path) -> None:
    """Space is asked for first; what the estimate does not see fails cleanly too."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        with pytest.raises(MiractlError, match=r"the pack needs .* is free in"):
            pack(source, disk / "packed", "int4")
        assert not any(disk.iterdir())
        for kind, advice in (("int8", "another disk, or with --experts int4"), ("int4", "disk")):
            with pytest.raises(MiractlError) as caught:
                pack(source, disk / "packed", kind)
            assert str(caught.value.hint).endswith(advice)
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(packing, "check_space", lambda job: None)
            with pytest.raises(MiractlError, match="no space left for"):
                pack(source, disk / "packed", "int4")
        assert not (disk / "packed").exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_nothing_is_overwritten(
    tmp_path: Path, source: Path, miractl: Callable[..., Result]
) -> None:
    (tmp_path / "there").mkdir()
    result = miractl("pack", str(source), "-o", str(tmp_path / "there"))
    assert result.exit_code == 1
    assert "is there already" in result.stderr
    foreign = tmp_path / "new.partial"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(MiractlError, match="not from an interrupted pack"):
        pack(source, tmp_path / "new", "int4")
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]


def test_another_job_does_not_go_on_with_an_interrupted_one(tmp_path: Path, source: Path) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        dying(monkeypatch, 12, Killed())
        with pytest.raises(Killed):
            pack(source, tmp_path / "packed", "int4", threads=1)
    with pytest.raises(MiractlError, match="begun from another source or with other options"):
        pack(source, tmp_path / "packed", "int8")


def test_two_processes_do_not_write_one_folder(tmp_path: Path, source: Path) -> None:
    import fcntl

    partial = tmp_path / "packed.partial"
    partial.mkdir()
    held = os.open(partial, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(MiractlError, match="another process is packing"):
            pack(source, tmp_path / "packed", "int4")
    finally:
        os.close(held)


def test_a_faulty_source_is_refused(tmp_path: Path, miractl: Callable[..., Result]) -> None:
    make_model(tmp_path / "source", "Qwen3Moe")
    shard = max((tmp_path / "source").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    result = miractl("pack", str(tmp_path / "source"), "-o", str(tmp_path / "packed"))
    assert result.exit_code == 1
    assert f"{shard.name} ends at byte" in result.stderr
    assert not list(tmp_path.glob("packed*"))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_widths_that_the_kernels_cannot_have_are_refused(tmp_path: Path, kind: str) -> None:
    make_model(tmp_path / "source", "Qwen3Moe")  # experts 32 x 24
    with pytest.raises(MiractlError, match=f"are 32 x 24: {kind} needs multiples of 32") as no:
        pack(tmp_path / "source", tmp_path / "packed", kind)
    assert no.value.hint == "pack them with --experts as-is"
    assert not list(tmp_path.glob("packed*"))


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    import torch

    model = make_model(tmp_path / "source", "GptOss")
    with torch.no_grad():
        model.get_parameter("model.layers.1.mlp.experts.down_proj")[2, 0, 0] = torch.inf
    model.save_pretrained(tmp_path / "source")
    for stale in (tmp_path / "source").glob("model-*"):
        stale.unlink()
    (tmp_path / "source" / "model.safetensors.index.json").unlink(missing_ok=True)
    with pytest.raises(MiractlError, match="expert 2 of MoE layer 1 has weights that are not"):
        pack(tmp_path / "source", tmp_path / "packed", "int8")


def test_a_packed_folder_is_not_packed_again(tmp_path: Path, source: Path) -> None:
    pack(source, tmp_path / "packed", "as-is")
    with pytest.raises(MiractlError, match="is packed already"):
        pack(tmp_path / "packed", tmp_path / "twice", "int4")


def test_the_command_says_what_it_made(
    tmp_path: Path, source: Path, miractl: Callable[..., Result]
) -> None:
    result = miractl("pack", str(source), "-o", str(tmp_path / "packed"), "--experts", "int4")
    assert result.exit_code == 0, result.output
    assert (
        "24 experts packed as int4 (i4k, groups of 32), 8 KiB each; experts 192 KiB, "
        in result.stdout
    )
    folder = tmp_path / "packed"
    total = format_bytes(sum(path.stat().st_size for path in folder.iterdir()))
    assert result.stdout.endswith(f", {total} in all\n")
    assert result.stderr == ""  # no terminal, no progress


def test_without_the_library_the_same_bytes_are_made(
    tmp_path: Path, source: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miractl.runtime.recipe.available", lambda: False)
    pack(source, tmp_path / "packed", "int4")
    assert hashes(tmp_path / "packed") == expected
