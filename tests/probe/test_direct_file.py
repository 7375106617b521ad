"""Reads past the page cache: the right bytes, nothing left in memory, and errors that say where."""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from miractl.errors import MiractlError
from miractl.probe import direct_file
from miractl.probe.direct_file import PAGE, DirectFile

CONTENT = os.urandom(9 * PAGE + 77)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "records.bin"
    with file.open("wb") as out:
        out.write(CONTENT)
        os.fsync(out.fileno())
    return file


@pytest.fixture(params=["direct", "indirect", "cached"])
def file(
    request: pytest.FixtureRequest, path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DirectFile]:
    if request.param == "indirect":
        refuse_direct(monkeypatch)
    monkeypatch.setattr(direct_file, "READ_AHEAD", 2 * PAGE)
    opened = DirectFile(path, is_cached=request.param == "cached")
    if request.param == "direct" and not opened.is_direct:
        pytest.skip("no direct reads here")
    yield opened
    opened.close()


def refuse_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return plain(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)


def pages(nbytes: int) -> memoryview:
    return memoryview(mmap.mmap(-1, nbytes))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    read: Callable[..., int] = os.preadv

    def count(*arguments: Any) -> int:
        calls.append(read(*arguments))
        return calls[-1]

    monkeypatch.setattr(os, "preadv", count)
    return calls


def cached_pages(path: Path) -> int:
    """Pages of a file that the kernel holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        count = -(-len(mapped) // PAGE)
        flags = (ctypes.c_ubyte * count)()
        begin = ctypes.c_char.from_buffer(mapped)
        address, length = ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(len(mapped))
        assert libc.mincore(address, length, flags) == 0
        del begin
        return sum(flag & 1 for flag in flags)


@pytest.mark.parametrize(
    ("start", "sizes"),
    [
        (0, [PAGE]),
        (2 * PAGE, [PAGE, 3 * PAGE]),
        (5, [1]),
        (PAGE - 1, [2]),
        (3 * PAGE + 5, [0, PAGE, 17, 2 * PAGE]),
        (0, [9 * PAGE + 77]),
        (9 * PAGE, [77]),
    ],
)
@pytest.mark.parametrize("bounce", [PAGE, direct_file.BOUNCE])
def test_any_stretch_into_any_buffers(
    file: DirectFile, start: int, sizes: list[int], bounce: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_file, "BOUNCE", bounce)
    buffers = [bytearray(size) for size in sizes]
    file.read_into([memoryview(buffer) for buffer in buffers], start)
    assert b"".join(buffers) == CONTENT[start : start + sum(sizes)]


def test_whole_pages_are_one_call_into_the_buffers(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = DirectFile(path)
    calls = counted(monkeypatch)
    first, second = pages(2 * PAGE), pages(PAGE)
    file.read_into([first, second], PAGE)
    assert calls == [3 * PAGE]
    assert bytes(first) + bytes(second) == CONTENT[PAGE : 4 * PAGE]
    file.close()


@pytest.mark.parametrize("start", [PAGE, PAGE + 3])
def test_what_stays_in_the_page_cache(
    request: pytest.FixtureRequest, file: DirectFile, path: Path, start: int
) -> None:
    with path.open("rb") as other:
        os.posix_fadvise(other.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_pages(path):
        pytest.skip("this file system does not give up pages")
    file.read_into([pages(4 * PAGE)], start)
    stays = request.node.callspec.params["file"] == "cached"
    assert cached_pages(path) >= 4 if stays else cached_pages(path) == 0


def test_calls_that_give_less_are_carried_on(
    file: DirectFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda handle, views, at: read(handle, [views[0][:PAGE]], at))
    first, second = pages(3 * PAGE), pages(2 * PAGE)
    file.read_into([first, second], PAGE)
    assert bytes(first) + bytes(second) == CONTENT[PAGE : 6 * PAGE]


@pytest.mark.parametrize(("start", "size"), [(8 * PAGE, 2 * PAGE), (9 * PAGE + 5, 73), (20, 10**5)])
def test_beyond_the_end(file: DirectFile, start: int, size: int) -> None:
    with pytest.raises(MiractlError) as caught:
        file.read_into([memoryview(bytearray(size))], start)
    assert str(caught.value) == (
        f"{file.path} now ends at byte 36,941, a read from byte {start:,} needs {size:,} bytes"
    )


def test_a_read_error_names_the_file_and_the_byte(
    file: DirectFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(MiractlError) as caught:
        file.read_into([pages(PAGE)], 2 * PAGE)
    assert str(caught.value) == f"cannot read {file.path} at byte 8,192: Input/output error"


def test_a_file_written_in_place_is_not_believed(file: DirectFile, path: Path) -> None:
    buffer = pages(PAGE)
    file.read_into([buffer], 0)
    path.write_bytes(CONTENT[::-1])
    os.utime(path, ns=(1, 1))
    with pytest.raises(MiractlError, match="was written to since it was opened"):
        file.read_into([buffer], 0)


def test_a_replaced_file_is_read_as_it_was(file: DirectFile, path: Path) -> None:
    other = path.with_name("new")
    other.write_bytes(CONTENT[::-1])
    other.replace(path)
    buffer = pages(PAGE)
    file.read_into([buffer], 0)
    assert bytes(buffer) == CONTENT[:PAGE]


def test_a_file_system_that_opens_but_does_not_read_directly(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.preadv

    def refuse(*_: Any) -> int:
        monkeypatch.setattr(os, "preadv", read)
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(os, "preadv", refuse)
    file = DirectFile(path)
    assert not file.is_direct
    file.close()
