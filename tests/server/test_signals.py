"""Stop signals, from the first to the last resort."""

import faulthandler
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from miractl.errors import ExitCode
from miractl.server import signals
from miractl.server.signals import StopSignals


class Ended(BaseException):
    """In place of the end of the process."""


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, float, int]]]:
    """The timers that were started: name, seconds, exit code."""
    found: list[tuple[str, float, int]] = []

    class Timer:
        def __init__(self, seconds: float, call: object, arguments: tuple[int]) -> None:
            found.append(("thread", seconds, arguments[0]))

        def start(self) -> None:
            pass

        def cancel(self) -> None:
            pass

    def later(seconds: float, exit: bool, file: object) -> None:
        found.append(("faulthandler", seconds, int(exit)))

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", later)
    monkeypatch.setattr(signals, "exit_now", end)
    return found


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.OK)]
)
def test_the_first_signal_asks_and_the_second_ends(
    number: signal.Signals, code: int, timers: list[tuple[str, float, int]]
) -> None:
    asked: list[str] = []
    stop = StopSignals(stop_seconds=5.0)
    stop.stop = lambda: asked.append("stop")
    with stop.installed():
        signal.raise_signal(number)
        assert (asked, stop.exit_code) == (["stop"], code)
        with pytest.raises(Ended, match="130"):
            signal.raise_signal(signal.SIGTERM)
    assert [(name, end) for name, _, end in timers] == [("thread", code), ("faulthandler", 1)]
    assert timers[0][1] < timers[1][1] < 5.0


def test_a_process_without_file_handles_stops(
    timers: list[tuple[str, float, int]], no_handles: Callable[[], None]
) -> None:
    stop = StopSignals()
    stop.stop = lambda: None
    with stop.installed():
        no_handles()
        signal.raise_signal(signal.SIGTERM)
    assert [name for name, _, _ in timers] == ["thread", "faulthandler"]


def test_the_end_may_be_put_off(timers: list[tuple[str, float, int]]) -> None:
    stop = StopSignals(stop_seconds=5.0)
    stop.stop = lambda: None
    stop.allow(30.0)  # nobody has asked for an end: no timer
    assert timers == []
    with stop.installed():
        signal.raise_signal(signal.SIGTERM)
        stop.allow(30.0)
    assert 5.0 < timers[2][1] < timers[3][1] < 30.0


@pytest.mark.usefixtures("timers")
def test_a_signal_before_there_is_a_server_ends_at_once() -> None:
    for number, code in ((signal.SIGINT, "130"), (signal.SIGTERM, "0")):
        stop = StopSignals()
        with stop.installed(), pytest.raises(Ended, match=code):
            signal.raise_signal(number)


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals().installed():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("hold", "code"), [("time.sleep(60)", 130), ("sleep(60)", 1)])
def test_nothing_holds_up_the_end(hold: str, code: int) -> None:
    """`ctypes.PyDLL` keeps the interpreter to itself, so that no Python thread gets a turn."""
    program = (
        "import ctypes, signal, time\n"
        "from miractl.server.signals import StopSignals\n"
        "sleep = ctypes.PyDLL(None).sleep\n"
        "stop = StopSignals(stop_seconds=1.3)\n"
        f"stop.stop = lambda: {hold}\n"
        "with stop.installed():\n"
        "    signal.raise_signal(signal.SIGINT)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")
