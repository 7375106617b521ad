"""Reading rates of files that are there, of files made for it, and what must not stay behind."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from miractl.probe import disk_rate, snapshot
from miractl.probe.snapshot import Measure


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("BLOCK", 2**16), ("LARGE", 2**18), ("AT_MOST", 2**20), ("MADE", 2**19)):
        monkeypatch.setattr(disk_rate, name, size)
    monkeypatch.setattr(disk_rate, "KEPT_FREE", 0)


def write(path: Path, size: int) -> Path:
    path.write_bytes(os.urandom(size))
    return path


@pytest.mark.parametrize(("size", "read"), [(2**19, 2**19), (2**22, 2**20), (2**18 + 5, 2**18 + 5)])
def test_a_large_file_is_read_as_it_is(tmp_path: Path, size: int, read: int) -> None:
    file = write(tmp_path / "model.safetensors", size)
    found = disk_rate.probe(str(file))
    assert found.rate > 0
    assert (found.size, found.temporary) == (read, False)


def test_a_folder_is_measured_by_its_largest_file(tmp_path: Path) -> None:
    write(tmp_path / "small", 2**10)
    write(tmp_path / "large", 2**19)
    (tmp_path / "link").symlink_to("/dev/zero")
    assert disk_rate.probe(str(tmp_path)).size == 2**19
    assert disk_rate.probe(str(tmp_path / "small")).size == 2**19


def test_a_file_is_made_where_there_is_none_and_never_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    read = disk_rate._read

    def look(path: str, temporary: bool) -> Any:
        seen.append(list(tmp_path.iterdir()))
        return read(path, temporary)

    monkeypatch.setattr(disk_rate, "_read", look)
    found = disk_rate.probe(str(tmp_path))
    assert (found.size, found.temporary) == (2**19, True)
    assert seen == [[]]


def test_without_room_no_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_rate, "KEPT_FREE", 2**62)
    with pytest.raises(OSError, match="too little space"):
        disk_rate.probe(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_direct_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.open

    def refuse(path: str, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return plain(path, flags, *rest, **more)

    file = write(tmp_path / "x", 2**19)
    monkeypatch.setattr(os, "open", refuse)
    assert not disk_rate.probe(str(file)).direct


def test_in_the_snapshot(tmp_path: Path) -> None:
    write(tmp_path / "x", 2**19)
    taken = snapshot.take(path=str(tmp_path), patience=30.0, measure=Measure(disk=True))
    assert taken.disk_rate is not None
    assert taken.disk_rate.size == 2**19
    gone = snapshot.take(path=str(tmp_path / "no"), patience=30.0, measure=Measure(disk=True))
    assert gone.disk_rate is None
    assert (gone.problem("disk_rate") or "").startswith("FileNotFoundError")
