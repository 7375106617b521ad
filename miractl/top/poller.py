"""Asks the server again and again in a thread of its own, so that the screen never waits."""

import threading
from collections.abc import Callable
from contextvars import copy_context

from miractl.errors import MiractlError
from miractl.telemetry.snapshot import Snapshot


class Poller:
    """Calls `fetch` every `interval` seconds and hands each outcome to `deliver`.

    The thread is a daemon: leaving the screen does not wait for an answer that may never come.
    `deliver` runs in that thread and returns False to end it.
    """

    def __init__(
        self,
        fetch: Callable[[], Snapshot],
        deliver: Callable[[Snapshot | MiractlError], bool],
        interval: float,
    ) -> None:
        self.interval = interval
        self._fetch = fetch
        self._deliver = deliver
        self._wake = threading.Event()
        self._stopped = False

    def start(self) -> None:
        """Begin at once, in the caller's context: the screen knows its messages by it."""
        context = copy_context()
        threading.Thread(target=context.run, args=(self._run,), daemon=True).start()

    def stop(self) -> None:
        """No further question; one that is under way is abandoned."""
        self._stopped = True
        self._wake.set()

    def set_interval(self, interval: float) -> None:
        """Ask at another pace, beginning now."""
        self.interval = interval
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped:
            outcome: Snapshot | MiractlError
            try:
                outcome = self._fetch()
            except MiractlError as error:
                outcome = error
            except Exception as error:  # a thread that dies in silence would freeze the screen
                text = " ".join(f"internal error: {type(error).__name__}: {error}".split())
                outcome = MiractlError(text)
            if self._stopped or not self._deliver(outcome):
                return
            self._wake.wait(self.interval)
            self._wake.clear()
