"""Stop signals: Ctrl-C and SIGTERM, from the first moment of the command to its certain end.

The first signal asks for an end, the second ends the process at once. Two timers stand behind the
first. One is a thread, so it keeps the exit code but needs the interpreter to get a turn; the other
is faulthandler's, in C, which no Python code can hold up: it ends the process with code 1.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from miractl.errors import ExitCode

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
LAST_RESORT = 1.2  # seconds before the limit, when the thread ends the process
VERY_LAST_RESORT = 0.6  # the same for faulthandler


class StopSignals:
    """What the two signals do. Before `stop` is set nothing runs that needs an end of its own."""

    def __init__(self, stop_seconds: float = 5.0) -> None:
        self.first: int | None = None
        self.stop: Callable[[], None] | None = None
        self._stop_seconds = stop_seconds
        self._timer: threading.Timer | None = None
        self._nowhere: int | None = None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Both signals come here until the block ends. Off the main thread nothing happens."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if self._nowhere is None:
            # Now, for a server that is told to stop may have no file handle left.
            self._nowhere = os.open(os.devnull, os.O_WRONLY)
        before = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @property
    def exit_code(self) -> ExitCode:
        """130 after Ctrl-C, 0 after SIGTERM or without a signal."""
        return ExitCode.INTERRUPTED if self.first == signal.SIGINT else ExitCode.OK

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.first is not None:
            exit_now(ExitCode.INTERRUPTED)
        self.first = number
        if self.stop is None:
            exit_now(self.exit_code)
            return
        self._start_timers(self._stop_seconds)
        self.stop()

    def allow(self, seconds: float) -> None:
        """The process has so much from now on to end by itself, if a signal has asked for it."""
        if self._timer is not None:
            self._timer.cancel()
            self._start_timers(seconds)

    def _start_timers(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds - LAST_RESORT, exit_now, (self.exit_code,))
        self._timer.daemon = True
        self._timer.start()
        # It writes where all threads are, which only helps with --debug.
        debug = bool(os.environ.get("MIRACTL_DEBUG"))
        target = 2 if debug or self._nowhere is None else self._nowhere
        faulthandler.dump_traceback_later(seconds - VERY_LAST_RESORT, exit=True, file=target)


def exit_now(code: int) -> None:
    """End the process without waiting for threads: one may be loading a model, or computing."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
