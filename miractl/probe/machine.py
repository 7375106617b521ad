"""The one door to the outside: every probe reads files, runs programs and asks the time through it.

Tests put dictionaries behind the same functions, so no probe needs the machine it describes.
"""

import importlib.util
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from miractl.paths import PACKAGE


def _read_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")


def _run(command: Sequence[str], timeout: float) -> str:
    # From the package's own parent, so that `python -m miractl...` finds this very package.
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, cwd=PACKAGE.parent
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ChildProcessError(f"exit code {done.returncode}: {last}")
    return done.stdout


def _affinity() -> set[int]:
    return set(os.sched_getaffinity(0))


def _disk(path: str) -> tuple[int, int]:
    found = os.statvfs(path)
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _version(package: str) -> str | None:
    # Half of what this module would take to import, and the child process of NVML is in a hurry.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _requires(package: str) -> list[str]:
    from importlib.metadata import PackageNotFoundError, requires

    try:
        return requires(package) or []
    except PackageNotFoundError:
        return []


def _module_file(module: str) -> str | None:
    # For a top-level name this finds the file and imports nothing.
    spec = importlib.util.find_spec(module)
    return None if spec is None else spec.origin


@dataclass(frozen=True, slots=True)
class Machine:
    """What probes may touch. `Machine()` is this machine; a readable call raises OSError."""

    read_text: Callable[[str], str] = _read_text
    listdir: Callable[[str], list[str]] = os.listdir
    realpath: Callable[[str], str] = os.path.realpath
    run: Callable[[Sequence[str], float], str] = _run  # its stdout; TimeoutError, ChildProcessError
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Callable[[], float] = time.time
    affinity: Callable[[], set[int]] = _affinity
    disk: Callable[[str], tuple[int, int]] = _disk  # total, free for this user
    version: Callable[[str], str | None] = _version
    requires: Callable[[str], list[str]] = _requires
    module_file: Callable[[str], str | None] = _module_file
    nvml: Any = None  # a module like pynvml; None: the real one, in a child process

    def line(self, path: str) -> str | None:
        """The first line of a small file, stripped; None if it cannot be read or is empty."""
        try:
            return self.read_text(path).partition("\n")[0].strip() or None
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The integer that a small file holds; None if it cannot be read or is not one."""
        text = self.line(path)
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def exists(self, path: str) -> bool:
        """Whether a file can be seen, by the listing of its folder."""
        folder, _, name = path.rpartition("/")
        try:
            return name in self.listdir(folder or "/")
        except OSError:
            return False


def cpu_list(text: str) -> set[int]:
    """The numbers of a kernel list: `0-3,8` is {0, 1, 2, 3, 8}. Raises ValueError for garbage."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        numbers.update(range(int(low), int(high or low) + 1))
    return numbers
