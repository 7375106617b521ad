"""What the screen knows, through restarts and silence."""

import pytest

from miractl.errors import MiractlError
from miractl.telemetry.client import ServerLoadingError
from miractl.top.history import History, Link, State
from tests.telemetry.snapshots import BASE, changed, later


class Clock:
    """Time that stands still until told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_rates_need_two_snapshots(clock: Clock) -> None:
    history = History(clock)
    assert history.link == Link(State.CONNECTING, "connecting")
    history.add(BASE)
    assert history.reading is not None
    assert (history.reading.now, history.reading.hit_rates) == (None, ())
    history.add(later(BASE, share=0.5))
    assert history.reading.now is not None
    assert history.reading.now.hit_rate == 0.5
    assert history.reading.start.hit_rate == pytest.approx(3020 / 4040)
    assert history.reading.hit_rates == (0.5,)
    assert history.link == Link(State.LIVE)


def test_the_same_snapshot_twice_changes_nothing(clock: Clock) -> None:
    history = History(clock)
    history.add(BASE)
    history.add(later(BASE))
    before = history.reading
    history.add(later(BASE))
    assert history.reading is before


def test_a_restart_begins_anew(clock: Clock) -> None:
    history = History(clock)
    history.add(BASE)
    history.add(later(BASE))
    young = changed(BASE, uptime_seconds=2.0)
    history.add(young)
    assert history.reading is not None
    assert (history.reading.snapshot, history.reading.now) == (young, None)
    assert history.reading.hit_rates == ()
    assert history.link == Link(State.LIVE, "the server restarted")
    history.add(later(young))
    assert history.reading.now is not None
    clock.now += 60
    assert history.link == Link(State.LIVE)


def test_silence_keeps_the_last_reading_and_ends(clock: Clock) -> None:
    history = History(clock)
    history.add(BASE)
    clock.now += 12
    history.fail(MiractlError("no miractl server at http://x"))
    assert history.reading is not None
    note = "no miractl server at http://x; no answer for 12 s"
    assert history.link == Link(State.LOST, note)
    history.add(later(BASE, seconds=13.0))
    assert history.link == Link(State.LIVE)
    assert history.reading.now is not None
    assert history.reading.now.seconds == 13.0


def test_never_reached(clock: Clock) -> None:
    history = History(clock)
    history.fail(MiractlError("no miractl server at http://x"))
    assert history.reading is None
    assert history.link == Link(State.LOST, "no miractl server at http://x")


def test_loading(clock: Clock) -> None:
    history = History(clock)
    history.fail(ServerLoadingError("..."))
    assert history.link == Link(State.LOADING, "the server is loading its model")


def test_a_long_watch_does_not_grow(clock: Clock) -> None:
    history = History(clock)
    snapshot = BASE
    for _ in range(300):
        history.add(snapshot)
        snapshot = later(snapshot)
    assert history.reading is not None
    assert len(history.reading.hit_rates) == 240
