"""Files that a command writes: checked before the work, there whole or not at all."""

import os
from pathlib import Path

from miractl.errors import MiractlError, UsageError


def check_target(path: Path) -> None:
    """Raise UsageError when `path` cannot be a file, before any work is done for it."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", hint=f"mkdir -p {path.parent}")


def check_new(path: Path) -> None:
    """The same for what must not be there yet: hours of a recording are not for overwriting."""
    check_target(path)
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} is there already", hint="name another file, or remove it")


def check_kept(warm_heat: Path | None, record_trace: Path | None) -> None:
    """Raise UsageError for files that could not be kept, before anything is bound or loaded."""
    if warm_heat is not None and warm_heat.is_dir():
        raise UsageError(f"--warm-heat: {warm_heat} is a folder", hint="name a file in it")
    if record_trace is None:
        return
    check_new(record_trace)
    if warm_heat is not None and warm_heat.absolute() == record_trace.absolute():
        raise UsageError(f"--warm-heat and --record-trace both name {record_trace}")


def write_whole(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step. Raises MiractlError when that fails."""
    target = Path(os.path.realpath(path))  # a link stays a link to the new content
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(content)  # a pipe or device: nothing to replace
            return
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(content)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise MiractlError(f"cannot write {path}: {error.strerror}") from None
