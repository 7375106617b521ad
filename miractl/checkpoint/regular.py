"""Files that can be read to their end: a checkpoint folder may hold pipes and devices too."""

import errno
import os
import stat
from pathlib import Path


def refuse_special(path: Path) -> None:
    """Raise OSError for what exists and is no regular file; opening a pipe would wait for ever."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
