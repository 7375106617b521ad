"""The application: keys, and snapshot -> message -> screen. A thread asks, the rest draws."""

from collections.abc import Callable
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.theme import Theme

from miractl.errors import MiractlError
from miractl.telemetry.snapshot import Snapshot
from miractl.top.glyphs import ASCII, UNICODE
from miractl.top.history import History
from miractl.top.playback import Playback
from miractl.top.poller import Poller
from miractl.top.screen import LiveScreen
from miractl.top.widgets import HelpScreen

INTERVALS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # seconds
_PANELS = Binding.Group("Panels", compact=True)
_PACE = Binding.Group("Interval", compact=True)
# One colour for data, one for what needs attention; the rest is grey.
_THEME = Theme(
    name="miractl",
    primary="#6cb6c9",
    secondary="#8a9bb0",
    accent="#6cb6c9",
    success="#8fbf7f",
    warning="#d9a657",
    error="#d97a6c",
    foreground="#d5dae0",
    background="#14171b",
    surface="#1a1e23",
    panel="#262c33",
)


class Polled(Message):
    """The outcome of one question to the server."""

    def __init__(self, outcome: Snapshot | MiractlError) -> None:
        super().__init__()
        self.outcome = outcome


class TopApp(App[None]):
    """Watches one server, or a recording of one, until a key ends it.

    Args:
        fetch: Asks for a snapshot; called in a thread of its own; raises MiractlError.
        interval: Seconds between two questions.
        unicode: False draws with ASCII alone.
        history: Where outcomes are kept; a new one unless a test brings its clock.
        playback: Where `fetch` comes from, if that is a recording: pausing halts it.
    """

    TITLE = "miractl top"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape,f10", "quit", "Quit", id="top.quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True, id="top.interrupt"),
        Binding("question_mark,h,f1", "help", "Help", id="top.help"),
        Binding("space", "pause", "Pause", id="top.pause"),
        Binding("minus", "pace(-1)", "Shorter interval", group=_PACE, id="top.shorter"),
        Binding("plus,equals_sign", "pace(1)", "Longer interval", group=_PACE, id="top.longer"),
        Binding("1", "toggle_panel(1)", "Panel: hit rate", group=_PANELS, id="top.panel.1"),
        Binding("2", "toggle_panel(2)", "Panel: transfer", group=_PANELS, id="top.panel.2"),
        Binding("3", "toggle_panel(3)", "Panel: switch latency", group=_PANELS, id="top.panel.3"),
        Binding("4", "toggle_panel(4)", "Panel: memory", group=_PANELS, id="top.panel.4"),
    ]

    def __init__(
        self,
        fetch: Callable[[], Snapshot],
        interval: float = 1.0,
        *,
        unicode: bool = True,
        history: History | None = None,
        playback: Playback | None = None,
    ) -> None:
        super().__init__()
        self.register_theme(_THEME)
        self.theme = "miractl"
        self.use_command_palette = unicode
        self._glyphs = UNICODE if unicode else ASCII
        self._live = LiveScreen(self._glyphs)
        self._history = history or History()
        self._poller = Poller(fetch, self._deliver, interval)
        self._paused, self._playback = False, playback

    def get_default_screen(self) -> LiveScreen:
        """The one screen."""
        return self._live

    def on_ready(self) -> None:
        """Begin to ask."""
        self._draw()
        self.start_polling()

    def start_polling(self) -> None:
        """Start the thread."""
        self._poller.start()

    def on_unmount(self) -> None:
        """Leave without waiting for an answer that may never come."""
        self._poller.stop()

    def _deliver(self, outcome: Snapshot | MiractlError) -> bool:
        """In the poller's thread: pass an outcome on; False once the screen is gone."""
        try:
            return self.post_message(Polled(outcome))
        except RuntimeError:  # the event loop closed between two questions
            return False

    def on_polled(self, message: Polled) -> None:
        """Take in an outcome; while paused it is kept and not shown."""
        if isinstance(message.outcome, MiractlError):
            self._history.fail(message.outcome)
        else:
            self._history.add(message.outcome)
        if not self._paused:
            self._draw()

    def _draw(self) -> None:
        pace = f"every {self._poller.interval:.3g} s"
        if self._playback is not None:
            pace = f"{self._playback.place}, {pace}"
        if self._paused:
            pace = "paused"
        self._live.show(self._history.reading, self._history.link, pace)

    def action_pause(self) -> None:
        """Hold the picture, or show what came meanwhile."""
        self._paused = not self._paused
        if self._playback is not None:
            self._playback.held = self._paused
        self._draw()

    def action_pace(self, step: int) -> None:
        """The next longer or shorter interval."""
        now = self._poller.interval
        options = (
            [i for i in INTERVALS if i > now] if step > 0 else [i for i in INTERVALS if i < now]
        )
        if options:
            self._poller.set_interval(min(options) if step > 0 else max(options))
            self._draw()

    def action_toggle_panel(self, number: int) -> None:
        """Show or hide one of the panels."""
        self._live.toggle(number)

    def action_help(self) -> None:
        """The keys."""
        self.push_screen(HelpScreen(self.listed_keys(), self._glyphs))

    def listed_keys(self) -> list[tuple[str, str]]:
        """Each action's keys and description, as the bindings have them."""
        ours = {b.action for b in self.BINDINGS if isinstance(b, Binding)}
        found: dict[str, tuple[list[str], str]] = {}
        for _, binding in self._bindings:
            if binding.action in ours:
                keys, _ = found.setdefault(binding.action, ([], binding.description))
                keys.append(self.get_key_display(binding))
        return [(", ".join(keys), description) for keys, description in found.values()]
