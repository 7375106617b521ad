"""How fast a folder's disk can be read: one reader, large blocks, past the page cache.

Reads a large file that is there, or one made for it. That file has no name: the kernel removes it
with the last handle, however this process ends.
"""

import errno
import mmap
import os
import tempfile
import time
from pathlib import Path

from miractl.probe.direct_file import DirectFile
from miractl.probe.facts import DiskRate
from miractl.units import GIB, MIB

PATIENCE = 60.0  # to write a file on a slow disk, and to read it
SECONDS = 2.0  # of reading, at most
BLOCK = 8 * MIB
LARGE = 64 * MIB  # what a file must have to be measured by
AT_MOST = 256 * MIB
MADE = 128 * MIB
KEPT_FREE = 1 * GIB  # besides the file that is made


def _read(path: str, temporary: bool) -> DiskRate:
    file = DirectFile(Path(path))
    try:
        # Anonymous maps begin at a page, as direct reads demand.
        with mmap.mmap(-1, BLOCK) as block, memoryview(block) as view:
            done, start = 0, time.perf_counter()
            most = min(file.size, AT_MOST)
            while done < most and time.perf_counter() - start < SECONDS:
                step = min(BLOCK, most - done)
                file.read_into([view[:step]], done)
                done += step
            seconds = time.perf_counter() - start
    finally:
        file.close()
    if done == 0 or seconds <= 0:
        raise OSError(errno.EIO, "nothing could be read", path)
    return DiskRate(done / seconds, done, file.is_direct, temporary)


def _largest(folder: Path) -> Path | None:
    """The largest plain file directly in `folder` that will do."""
    sizes = {}
    for entry in os.scandir(folder):
        if entry.is_file(follow_symlinks=False) and os.access(entry.path, os.R_OK):
            sizes[entry.path] = entry.stat(follow_symlinks=False).st_size
    best = max(sizes, key=lambda path: sizes[path], default=None)
    return Path(best) if best is not None and sizes[best] >= LARGE else None


def _make_and_read(folder: Path) -> DiskRate:
    room = os.statvfs(folder)
    if room.f_frsize * room.f_bavail < MADE + KEPT_FREE:
        raise OSError(errno.ENOSPC, "too little space for a file to measure with", str(folder))
    noise = os.urandom(BLOCK)  # a disk that compresses would read zeros for nothing
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(MADE // BLOCK):
            file.write(noise)
        os.fsync(file.fileno())
        return _read(f"/proc/self/fd/{file.fileno()}", temporary=True)


def probe(path: str) -> DiskRate:
    """The rate of a file's disk, or of a folder's.

    Raises OSError or MiractlError when it cannot be measured.
    """
    place = Path(path)
    if place.is_file():
        if place.stat().st_size >= LARGE:
            return _read(path, temporary=False)
        place = place.parent
    found = _largest(place)
    return _make_and_read(place) if found is None else _read(str(found), temporary=False)
