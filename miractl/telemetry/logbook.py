"""A file of status snapshots, one JSON object a line, in the order in which a server gave them."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from miractl.errors import MiractlError, UsageError
from miractl.outfile import check_new
from miractl.telemetry.snapshot import Snapshot

HINT = "record one: miractl top --record FILE"


class Logbook:
    """A file that grows by a line a snapshot; each is on its way to the disk when it is added."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError if something is there already; the first snapshot makes the file."""
        check_new(path)
        self.path, self.count = path, 0
        self._file: IO[str] | None = None

    def add(self, snapshot: Snapshot) -> None:
        """Append one. Raises MiractlError when the disk refuses."""
        try:
            if self._file is None:
                self._file = self.path.open("x", encoding="utf-8")
            self._file.write(json.dumps(snapshot.to_json(), allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise MiractlError(
                f"cannot record to {self.path}: {error.strerror}; {self.count} snapshots are there"
            ) from None
        self.count += 1

    def close(self) -> None:
        """End the file."""
        if self._file is not None:
            with suppress(OSError):  # what could not be written has been told
                self._file.close()


def read_logbook(path: Path, warn: Callable[[str], None]) -> list[Snapshot]:
    """All snapshots of a file, at least one.

    A last line that was cut is left out with a warning, as a full disk or a kill leaves one. Raises
    UsageError for a file that is no recording.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text"
        raise UsageError(f"recording {path}: {reason}", hint=HINT) from None
    found: list[Snapshot] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(Snapshot.from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError):
            if found and number == len(lines) and not line.endswith("\n"):
                warn(f"recording {path}: line {number}, the last, was cut and is left out")
                break
            raise UsageError(
                f"recording {path}: line {number} is no status of a server", hint=HINT
            ) from None
    if not found:
        raise UsageError(f"recording {path}: no snapshot in it", hint=HINT)
    return found
