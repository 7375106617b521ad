"""The layout of the live screen, wide to narrow, and what stands there with nothing to show."""

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.geometry import Size
from textual.screen import Screen
from textual.widgets import Footer, Static

from miractl.top.glyphs import ASCII, Glyphs
from miractl.top.history import Link, Reading, State
from miractl.top.views import views
from miractl.top.widgets import Header, Layers, Panel

SMALLEST = Size(40, 12)


class LiveScreen(Screen[None]):
    """Header, four panels, layers and keys; a message in their place when there is no reading."""

    DEFAULT_CSS = """
    LiveScreen { layout: vertical;
      #panels { layout: grid; grid-size: 2; grid-rows: 1fr; height: 1fr; overflow-y: hidden;
        scrollbar-size: 0 0; }
      #message { display: none; height: 1fr; content-align: center middle; text-align: center;
        color: $text-muted; padding: 0 2; }
      Layers { max-height: 5; }
      &.-tall Layers { max-height: 14; }
      &.-short Layers { display: none; }
      &.-stacked Layers { max-height: 5; }
      &.-stacked #panels { grid-size: 1; overflow-y: auto; }
      &.-stacked.-medium Layers { display: none; }
      &.-stacked.-short #panels { grid-rows: 6; }
      &.-stale Panel, &.-stale Layers { opacity: 60%; }
      &.-mute #panels, &.-mute Layers { display: none; }
      &.-mute #message { display: block; }
      &.-small Header, &.-small Footer { display: none; }
      &.-ascii Panel, &.-ascii Layers { border: ascii $panel-lighten-2; }
      &.-ascii Panel.warn { border: ascii $warning; }
    }
    """

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(classes="-ascii" if glyphs is ASCII else None)
        # Side by side down to 64 columns; below that one under the other, scrolling.
        self.HORIZONTAL_BREAKPOINTS = [(0, "-stacked"), (64, "-narrow"), (81, "-wide")]
        self.VERTICAL_BREAKPOINTS = [(0, "-short"), (20, "-medium"), (34, "-tall")]
        self._glyphs = glyphs
        self._header = Header(glyphs)
        self._panels = [Panel(number, glyphs) for number in (1, 2, 3, 4)]
        self._box = VerticalScroll(*self._panels, id="panels")
        self._layers = Layers(glyphs)
        self._message = Static("", id="message", markup=False)
        self._link = Link(State.CONNECTING)
        self._has_reading = False

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield self._header
        yield self._box
        yield self._layers
        yield self._message
        yield Footer(show_command_palette=False)

    def show(self, reading: Reading | None, link: Link, pace: str) -> None:
        """Draw one reading. `pace` says how often, or that the screen is paused."""
        header = self._header
        header.reading, header.link, header.pace = reading, link, pace
        if reading:
            for panel, view in zip(self._panels, views(reading), strict=True):
                panel.view = view
            self._layers.reading = reading
        if reading and not self._has_reading:
            self._box.focus()  # the arrow keys scroll it
        self._link, self._has_reading = link, reading is not None
        self.set_class(link.state in (State.LOST, State.LOADING), "-stale")
        self._choose(self.size)

    def toggle(self, number: int) -> None:
        """Show or hide a panel; the last of an odd number takes the whole row."""
        chosen = self._panels[number - 1]
        chosen.display = not chosen.display
        visible = [panel for panel in self._panels if panel.display]
        for panel in visible:
            panel.styles.column_span = 1
        if len(visible) % 2 and not self.has_class("-stacked"):
            visible[-1].styles.column_span = 2

    def on_resize(self, event: Resize) -> None:
        """A terminal may become too small, and large enough again."""
        self._choose(event.size)

    def _choose(self, size: Size) -> None:
        """The panels, or the reason why there are none."""
        small = size.width < SMALLEST.width or size.height < SMALLEST.height
        self.set_class(small, "-small")
        self.set_class(small or not self._has_reading, "-mute")
        text = f"too small: {size.width}x{size.height},\nneeds {SMALLEST.width}x{SMALLEST.height}"
        waiting = "" if self._link.state is State.CONNECTING else "\nasking again until it answers"
        message = self._glyphs.text(text if small else self._link.note + waiting)
        self._message.update(message)
