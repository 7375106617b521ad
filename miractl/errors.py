"""Errors that a user can act on, and the exit codes of the command line.

Every error is one line that says what, with the value; `hint` is the next thing to type or do.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process ends with. No other code is used."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130


class MiractlError(Exception):
    """An expected failure, shown as one line and a hint, without a traceback."""

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(MiractlError):
    """The command line, the environment, a profile or the configuration is wrong."""

    exit_code = ExitCode.USAGE
