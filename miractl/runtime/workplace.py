"""Where a long job writes: a folder of its own, and a disk that may be full."""

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from miractl.errors import MiractlError


@contextmanager
def own_folder(partial: Path) -> Iterator[None]:
    """The partial folder, held by this process alone. A lock ends with its process."""
    if not partial.parent.is_dir():
        raise MiractlError(f"no folder {str(partial.parent)!r} to pack into")
    partial.mkdir(exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MiractlError(f"another process is packing into {partial}") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(partial: Path) -> Iterator[None]:
    """What the file system refuses, in one line that says how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise MiractlError(
                f"no space left for {partial}",
                hint="make room and run the same command again: it goes on where it stopped",
            ) from error
        raise


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """The threads of the pool are those that share the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def write_json(path: Path, data: Any) -> None:
    """The file is the old one or the new one, never half."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(new, path)
