"""A file read past the page cache, so that what is read is in memory once.

Direct reads move whole pages into whole pages. A range that does not lie so is read with the rest
of its first and last page into a buffer of the thread, and copied from there. Where the file system
has no direct reads, the kernel's pages are given up again after each read.
"""

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from miractl.errors import MiractlError

PAGE = 4096  # a multiple of every logical block in use
BOUNCE = 8 << 20  # bytes of the buffer for what does not lie in whole pages
READ_AHEAD = 128 << 10  # bytes that the kernel reads at a time unless it is told of more

_threads = threading.local()


def _bounce() -> mmap.mmap:
    """The calling thread's buffer; anonymous maps begin at a page."""
    if not hasattr(_threads, "buffer"):
        _threads.buffer = mmap.mmap(-1, BOUNCE)
    buffer: mmap.mmap = _threads.buffer
    return buffer


class DirectFile:
    """An open file. Reads are thread-safe: each names its own position.

    One that `is_cached` is read through the page cache, and its pages stay there as long as nobody
    needs the memory: for what is wanted again and is in no other place of the host's memory.
    """

    def __init__(self, path: Path, *, is_cached: bool = False) -> None:
        """Raises OSError."""
        self.path, self._is_cached = path, is_cached
        self._descriptor, self.is_direct = (
            (os.open(path, os.O_RDONLY), False) if is_cached else _open(path)
        )
        self._opened = os.fstat(self._descriptor)
        self.size = self._opened.st_size

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)

    def expect(self, start: int, nbytes: int) -> None:
        """Ranges of so many bytes from `start` on will be wanted: into the page cache with them.

        No longer than there is memory for them, and without what lies around later reads.
        """
        os.posix_fadvise(self._descriptor, start, nbytes, os.POSIX_FADV_WILLNEED)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def read_into(self, views: Sequence[memoryview], start: int) -> int:
        """Fill buffers of bytes, one after the other, from one stretch of the file.

        Returns the bytes that were fetched for it, whole pages where reads are direct. One system
        call if the stretch and every buffer lie in whole pages. Raises MiractlError, with the file
        and the byte, if the file is too short, cannot be read, or was written to since it was
        opened.
        """
        views = [view for view in views if len(view)]
        needed = sum(map(len, views))
        try:
            if self._is_cached and needed > READ_AHEAD:
                os.posix_fadvise(self._descriptor, start, needed, os.POSIX_FADV_WILLNEED)
            if self.is_direct and not _in_pages(views, start):
                got, fetched = self._read_around(views, start, needed)
            else:
                got = fetched = self._read(views, start)
            if not self.is_direct and not self._is_cached:
                _drop(self._descriptor, start, needed)
            now = os.fstat(self._descriptor)
        except OSError as error:
            raise MiractlError(
                f"cannot read {self.path} at byte {start:,}: {error.strerror}"
            ) from error
        if got < needed:
            raise MiractlError(
                f"{self.path} now ends at byte {now.st_size:,}, a read from byte {start:,} needs "
                f"{needed:,} bytes"
            )
        if self._is_other(now):
            raise MiractlError(
                f"{self.path} was written to since it was opened: its bytes from {start:,} cannot "
                "be trusted",
                hint="restart the server, with the file that is there now",
            )
        return fetched

    @property
    def is_changed(self) -> bool:
        """Whether it was written to or cut since it was opened, so that reads fail."""
        return self._is_other(os.fstat(self._descriptor))

    def _is_other(self, now: os.stat_result) -> bool:
        return (now.st_size, now.st_mtime_ns) != (self.size, self._opened.st_mtime_ns)

    def _read(self, views: Sequence[memoryview], start: int) -> int:
        """Fill the buffers as far as the file goes; returns the bytes."""
        left, got = list(views), 0
        while left:
            step = os.preadv(self._descriptor, left, start + got)
            got += step
            if step == 0 or (self.is_direct and step % PAGE):  # the end of the file
                break
            while left and step >= len(left[0]):
                step -= len(left.pop(0))
            if step:
                left[0] = left[0][step:]
        return got

    def _read_around(self, views: Sequence[memoryview], start: int, needed: int) -> tuple[int, int]:
        """The same for what does not lie in whole pages; also returns the bytes fetched."""
        done = fetched = 0
        with memoryview(_bounce()) as buffer:
            while done < needed:
                lead = (start + done) % PAGE
                step = min(needed - done, BOUNCE - lead)
                room = -(-(lead + step) // PAGE) * PAGE
                page = self._read([buffer[:room]], start + done - lead)
                fetched += page
                got = min(page - lead, step)
                if got > 0:
                    _scatter(buffer[lead : lead + got], views, done)
                    done += got
                if got < step:
                    break
        return done, fetched


def _scatter(source: memoryview, views: Sequence[memoryview], skipped: int) -> None:
    """Copy `source` to the buffers from byte `skipped` of them all."""
    ends = [0]
    for view in views:
        ends.append(ends[-1] + len(view))
    for view, (begin, end) in zip(views, pairwise(ends), strict=True):
        first, last = max(begin, skipped), min(end, skipped + len(source))
        if first < last:
            view[first - begin : last - begin] = source[first - skipped : last - skipped]


def _open(path: Path) -> tuple[int, bool]:
    """A handle, past the page cache if the file system has that, and whether it has."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, os.O_RDONLY), False
    try:  # some file systems open what they then do not read
        os.preadv(descriptor, [memoryview(_bounce())[:PAGE]], 0)
    except OSError as error:
        os.close(descriptor)
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, os.O_RDONLY), False
    return descriptor, True


def _in_pages(views: Sequence[memoryview], start: int) -> bool:
    return start % PAGE == 0 and all(
        len(view) % PAGE == 0 and _address(view) % PAGE == 0 for view in views
    )


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _drop(descriptor: int, start: int, nbytes: int) -> None:
    """Give up the kernel's pages of a range, those at its edges too."""
    begin = start - start % PAGE
    os.posix_fadvise(descriptor, begin, start + nbytes - begin + PAGE, os.POSIX_FADV_DONTNEED)
