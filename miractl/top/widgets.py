"""The widgets of the live screen. They only draw what they were given."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from miractl.telemetry.health import Status
from miractl.top.drawing import DATA, QUIET, WARN, Pen, layer_grid, layers, panel, stack
from miractl.top.glyphs import ASCII, Glyphs
from miractl.top.history import Link, Reading, State
from miractl.top.views import LayerRate, View, capacity_line, layer_rates, title_line

_STATE_STYLES = {
    State.LIVE: "$text-success",
    State.LOADING: WARN,
    State.LOST: "$text-error",
    State.CONNECTING: QUIET,
}


class Header(Widget):
    """Two lines: what is watched and whether it answers; what it can hold and how fast it is."""

    DEFAULT_CSS = "Header { height: 2; padding: 0 1; }"

    reading: reactive[Reading | None] = reactive(None)
    link: reactive[Link] = reactive(Link(State.CONNECTING))
    pace: reactive[str] = reactive("")

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self._pen = Pen(glyphs)

    def render(self) -> Content:
        """Title with the state at the right edge, then the capacity, or what is wrong."""
        width = self.content_size.width
        style = WARN if self.pace == "paused" else _STATE_STYLES[self.link.state]
        right = f"● {self.pace if self.link.state is State.LIVE else self.link.state}"
        title = title_line(self.reading.snapshot) if self.reading else ""
        room = max(width - len("miractl top  ") - len(right) - 2, 0)
        first = self._pen.line(
            ("miractl top  ", f"bold {DATA}"),
            (_cut(title, room).ljust(room), ""),
            (f"  {right}", style),
        )
        return stack([first, self._second(width)])

    def _second(self, width: int) -> Content:
        if self.reading is None:
            return Content("")  # the note stands in the middle of the screen
        if self.link.note:
            return self._pen.line((_cut(self.link.note, width), WARN))
        return self._pen.line((_cut(capacity_line(self.reading), width), QUIET))


def _cut(text: str, width: int) -> str:
    """As many of the parts between dots as fit: a part is left out whole."""
    if len(text) <= width:
        return text
    head, dot, _ = text.rpartition(" · ")
    return _cut(head, width) if dot else text[: max(width - 1, 0)] + "…"


class Panel(Widget):
    """One of the four figures. The frame takes the colour of the verdict."""

    DEFAULT_CSS = """
    Panel { border: round $panel-lighten-2; padding: 0 1; border-title-color: $foreground;
      border-subtitle-color: $text-muted; min-height: 5;
      &.warn { border: round $warning 70%; border-title-color: $text-warning; }
    }
    """

    view: reactive[View | None] = reactive(None)

    def __init__(self, number: int, glyphs: Glyphs) -> None:
        super().__init__(id=f"panel-{number}")
        self._number = number
        self._glyphs = glyphs

    def watch_view(self, view: View | None) -> None:
        """The verdict goes into the frame."""
        if view is None:
            return
        mark = self._glyphs.marks[view.verdict.status]
        self.border_title = Content(self._glyphs.text(f"{self._number} {view.title} {mark}"))
        self._name_range()
        self.set_class(view.verdict.status is Status.WARN, "warn")

    def on_resize(self) -> None:
        """A narrow frame has room for less."""
        self._name_range()

    def _name_range(self) -> None:
        if self.view is None:
            return
        healthy = self.view.verdict.healthy_text
        text = healthy if healthy.startswith("n/a") else f"healthy {healthy}"
        if len(text) > self.size.width - 6:
            text = text.partition(",")[0]
        self.border_subtitle = Content(self._glyphs.text(text))

    def render(self) -> Content:
        """The view, drawn for the present size."""
        if self.view is None:
            return Content("")
        return panel(self.view, self.content_size.width, self.content_size.height, self._glyphs)


class Layers(Widget):
    """Hit rate of each MoE layer since the start of the server."""

    DEFAULT_CSS = """
    Layers { border: round $panel-lighten-2; padding: 0 1; height: auto;
      border-title-color: $foreground; }
    """

    reading: reactive[Reading | None] = reactive(None, layout=True)

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(id="layers")
        self._glyphs = glyphs

    @property
    def _rates(self) -> tuple[LayerRate, ...]:
        return layer_rates(self.reading) if self.reading else ()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Lines that all layers need; the style sheet sets the most that they get."""
        columns, _ = layer_grid(width)
        return max(-(-len(self._rates) // columns), 1)

    def render(self) -> Content:
        """Bars; the frame says when some layers have no room."""
        width, height = self.content_size
        rates, room = self._rates, layer_grid(width)[0] * height
        which = f"the lowest {room} of {len(rates)}" if room < len(rates) else f"all {len(rates)}"
        self.border_title = Content(f"hit rate by layer, since start: {which}")
        return layers(rates, width, height, self._glyphs)


class HelpScreen(ModalScreen[None]):
    """The keys, generated from the bindings."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; background: $background 60%;
      & > VerticalScroll { width: 64; max-width: 100%; height: auto; max-height: 100%;
        padding: 1 3; background: $surface; border: round $primary;
        border-title-color: $foreground; }
      &.-ascii > VerticalScroll { border: ascii $primary; }
    }
    """
    BINDINGS: ClassVar = [
        Binding("escape,q,question_mark,h,f1,space,enter", "dismiss", "Close", id="help.close")
    ]

    def __init__(self, bindings: list[tuple[str, str]], glyphs: Glyphs) -> None:
        super().__init__(classes="-ascii" if glyphs is ASCII else None)
        self._keys = bindings
        self._pen = Pen(glyphs)

    def compose(self) -> ComposeResult:
        """A frame with the list in it."""
        with VerticalScroll() as box:
            box.border_title = Content("keys")
            yield Static(self._text())

    def _text(self) -> Content:
        wide = max(len(keys) for keys, _ in self._keys) + 3
        lines = [self._pen.line((f"{keys:<{wide}}", DATA), (what, "")) for keys, what in self._keys]
        notes = (
            "now is since the last refresh,",
            "start is the start of the server,",
            "last 1k are the last 1,000 switches.",
            "A frame names the healthy range.",
        )
        return stack([*lines, Content(""), *(self._pen.line((note, QUIET)) for note in notes)])
