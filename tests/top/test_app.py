"""The live screen: pictures of it, its keys, and what it does when the server does not answer."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
import textual
from textual.pilot import Pilot

from miractl.errors import MiractlError
from miractl.telemetry.snapshot import LayerFacts, Snapshot
from miractl.top.app import Polled, TopApp
from miractl.top.history import History
from miractl.top.poller import Poller
from miractl.top.widgets import Header, HelpScreen, Layers, Panel
from tests.telemetry.snapshots import BASE, changed, later, on_cuda

LOST = MiractlError("no miractl server at http://127.0.0.1:8000")
Step = Snapshot | MiractlError


class StillApp(TopApp):
    """Asks nobody: a test says what arrives. No time passes."""

    def __init__(self, *, unicode: bool = True) -> None:
        super().__init__(lambda: BASE, unicode=unicode, history=History(lambda: 0.0))

    def start_polling(self) -> None:
        """Nothing."""


def course(base: Snapshot = BASE, steps: int = 60) -> list[Step]:
    """A minute of a server whose hit rate rises, falls and pauses."""
    snapshots: list[Step] = [base]
    for index in range(steps):
        share = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.85, 0.75)[index // 4 % 8]
        base = later(base, share=share)
        snapshots.append(base)
    return snapshots


async def show(pilot: Pilot[None], *outcomes: Step) -> None:
    """Deliver outcomes and wait until they are drawn."""
    for outcome in outcomes:
        pilot.app.post_message(Polled(outcome))
    await pilot.pause()


def showing(*outcomes: Step, keys: str = "") -> Callable[[Pilot[None]], Awaitable[None]]:
    async def run(pilot: Pilot[None]) -> None:
        await show(pilot, *outcomes)
        await pilot.press(*keys)
        await pilot.pause()
        assert pilot.app.return_code is None, "the screen crashed"

    return run


MANY_LAYERS = changed(
    on_cuda(), layers=tuple(LayerFacts(n, 1000, 700 + n * 37 % 300) for n in range(48))
)
SICK = changed(
    BASE,
    cache={"hits": 500, "misses": 3500, "evictions": 3400, "late": 0},
    switch={"p95_seconds": 0.5},
)


drawn_by_8_2 = pytest.mark.skipif(
    not textual.__version__.startswith("8.2."), reason="the pictures are those of textual 8.2"
)
SIZES = [(80, 24), (120, 40), (56, 36)]
STATES: dict[str, tuple[list[Step], str]] = {
    "connecting": ([], ""),
    "never-reached": ([LOST], ""),
    "lost": ([*course(steps=5), LOST], ""),
    "sick": (course(SICK, 5), ""),
    "three-panels": (course(steps=5), "2"),
    "help": (course(steps=5), "?"),
}


@drawn_by_8_2
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    "base", [pytest.param(BASE, id="cpu"), pytest.param(MANY_LAYERS, id="cuda")]
)
def test_live(snap_compare: Callable[..., bool], size: tuple[int, int], base: Snapshot) -> None:
    assert snap_compare(StillApp(), terminal_size=size, run_before=showing(*course(base)))


@drawn_by_8_2
@pytest.mark.parametrize("name", STATES)
def test_states(snap_compare: Callable[..., bool], name: str) -> None:
    outcomes, keys = STATES[name]
    before = showing(*outcomes, keys=keys)
    assert snap_compare(StillApp(), terminal_size=(80, 24), run_before=before)


@drawn_by_8_2
def test_ascii(snap_compare: Callable[..., bool]) -> None:
    app = StillApp(unicode=False)
    assert snap_compare(app, terminal_size=(80, 24), run_before=showing(*course(steps=9)))


def drive(
    scenario: Callable[[StillApp, Pilot[None]], Awaitable[None]],
    size: tuple[int, int] = (80, 24),
    app: StillApp | None = None,
) -> StillApp:
    """Run a scenario on a screen of `size`."""
    app = app or StillApp()

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await scenario(app, pilot)

    asyncio.run(run())
    return app


@pytest.mark.parametrize("key", ["q", "escape", "f10", "ctrl+c", "ctrl+q"])
def test_keys_that_quit(key: str) -> None:
    async def scenario(app: StillApp, pilot: Pilot[None]) -> None:
        await show(pilot, *course(steps=2))
        await pilot.press(key)
        await pilot.pause()
        assert not app.is_running

    assert drive(scenario).return_code == 0


def test_pause_holds_the_picture_and_keeps_the_data() -> None:
    async def scenario(app: StillApp, pilot: Pilot[None]) -> None:
        header = app.screen.query_one(Header)
        first, second, third = (s for s in course(steps=2) if isinstance(s, Snapshot))
        await show(pilot, first)
        await pilot.press("space")
        await show(pilot, second, third)
        assert header.reading is not None
        assert (header.reading.snapshot, header.pace) == (first, "paused")
        await pilot.press("space")
        await pilot.pause()
        assert header.reading.snapshot == third
        assert len(header.reading.hit_rates) == 2

    drive(scenario)


def test_interval_keys_stop_at_both_ends() -> None:
    async def scenario(app: StillApp, pilot: Pilot[None]) -> None:
        paces = []
        for key in ("-", "-", "-", "+", *"++++++++"):
            await pilot.press({"-": "minus", "+": "plus"}[key])
            paces.append(app.screen.query_one(Header).pace)
        assert paces[:4] == ["every 0.5 s", "every 0.25 s", "every 0.25 s", "every 0.5 s"]
        assert paces[-1] == "every 60 s"

    drive(scenario)


def test_panels_go_and_come_back() -> None:
    async def scenario(app: StillApp, pilot: Pilot[None]) -> None:
        await show(pilot, BASE)
        panels = list(app.screen.query(Panel))
        await pilot.press("1", "2", "3", "4")
        await pilot.pause()
        assert not any(panel.display for panel in panels)
        await pilot.press("3")
        await pilot.pause()
        assert [panel.display for panel in panels] == [False, False, True, False]
        assert panels[2].size.width > 70

    drive(scenario)


def test_help_closes_and_the_screen_goes_on() -> None:
    async def scenario(app: StillApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        await show(pilot, *course(steps=1))  # arrives behind the help
        await pilot.press("escape")
        await pilot.pause()
        assert app.is_running
        assert app.screen.query_one(Header).reading is not None

    drive(scenario)


def test_help_names_every_key() -> None:
    async def scenario(app: StillApp, pilot: Pilot[None]) -> None:
        listed = " ".join(keys for keys, _ in app.listed_keys())
        for key in ("q", "esc", "f10", "^c", "space", "-", "+", "1", "2", "3", "4", "?"):
            assert key in listed.replace(",", "").split()

    drive(scenario)


def test_every_size_down_to_one_line() -> None:
    async def scenario(app: StillApp, pilot: Pilot[None]) -> None:
        await show(pilot, *course(steps=3))
        message = app.screen.query_one("#message")
        for width, height, drawn in (
            (200, 50, True),
            (40, 12, True),
            (20, 5, False),
            (1, 1, False),
            (39, 30, False),
            (80, 11, False),
            (80, 24, True),
        ):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            assert message.display is not drawn, (width, height)

    drive(scenario)


def test_layers_that_have_no_room_give_way_to_the_lowest() -> None:
    async def scenario(app: StillApp, pilot: Pilot[None]) -> None:
        await show(pilot, MANY_LAYERS)
        title = str(app.screen.query_one(Layers).border_title)
        assert title.endswith("the lowest 9 of 48")

    drive(scenario)


def test_the_server_comes_back() -> None:
    async def scenario(app: StillApp, pilot: Pilot[None]) -> None:
        await show(pilot, LOST)
        assert app.screen.query_one("#message").display
        await show(pilot, BASE)
        assert not app.screen.query_one("#message").display
        await show(pilot, LOST)
        assert app.screen.has_class("-stale")
        await show(pilot, changed(BASE, uptime_seconds=1.0))
        assert not app.screen.has_class("-stale")
        assert app.screen.query_one(Header).link.note == "the server restarted"

    drive(scenario)


def test_a_real_poller_reaches_the_screen() -> None:
    """The thread, the message and the widgets together."""
    answered = threading.Event()

    def fetch() -> Snapshot:
        answered.set()
        return BASE

    async def run() -> None:
        app = TopApp(fetch, 60.0)
        async with app.run_test(size=(80, 24)) as pilot:
            assert await asyncio.to_thread(answered.wait, 5)
            header = app.screen.query_one(Header)
            for _ in range(500):
                if header.reading:
                    break
                await pilot.pause(0.01)
            assert header.reading is not None

    asyncio.run(run())


def test_poller_delivers_failures_and_goes_on() -> None:
    answers: Iterator[Snapshot | Exception] = iter([LOST, RuntimeError("a\nbug"), BASE])
    outcomes: list[Step] = []
    done = threading.Event()

    def fetch() -> Snapshot:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def deliver(outcome: Step) -> bool:
        outcomes.append(outcome)
        if len(outcomes) == 3:
            done.set()
        return len(outcomes) < 3

    Poller(fetch, deliver, 0.0).start()
    assert done.wait(5)
    assert outcomes[0] is LOST
    assert str(outcomes[1]) == "internal error: RuntimeError: a bug"
    assert outcomes[2] is BASE
