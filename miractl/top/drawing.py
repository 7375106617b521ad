"""Draws views into styled lines of a given size. Pure: no widget, no clock, no state."""

from textwrap import wrap

from textual.content import Content

from miractl.telemetry.health import Status
from miractl.top.glyphs import Glyphs, bar, chart, histogram
from miractl.top.views import Histogram, LayerRate, View, worst_layers
from miractl.units import format_share

QUIET = "$foreground 60%"
DATA = "$primary"
AREA = "$primary 75%"  # large fields of it
WARN = "$text-warning"
LAYER_CELL = 24  # label, bar and rate of a layer, and the gap to the next
_LAYER_WORDS = 14


def panel(view: View, width: int, height: int, glyphs: Glyphs) -> Content:
    """The inside of a panel: numbers on top, picture or advice in what is left."""
    pen = Pen(glyphs)
    warns = view.verdict.status is Status.WARN and view.verdict.advice is not None
    header = [_header(view.columns, width, pen)] if any(view.columns) else []
    # The picture needs a line; a warning needs three and comes before the picture.
    reserve = len(header) + (3 if warns else 1) if height > 3 else len(header)
    rows = view.rows[: max(height - reserve, 1)]
    lines = header + [_row(row, len(view.columns), width, pen) for row in rows]
    advice: list[Content] = []
    if warns:
        advice = _advice(view.verdict.advice or "", width, height - len(lines), pen)
    room = height - len(lines) - len(advice)
    if room > 2:
        lines.append(Content(""))  # air between numbers and picture
        room -= 1
    if view.gauge and (room > 1 or (room == 1 and not view.trend)):
        lines.append(_gauge(*view.gauge, width, pen))
        room -= 1
    lines += _picture(view, width, room, pen)
    return stack((lines + advice)[:height])


class Pen:
    """Writes pieces of text with their styles in the terminal's characters."""

    def __init__(self, glyphs: Glyphs) -> None:
        self.glyphs = glyphs

    def line(self, *pieces: tuple[str, str]) -> Content:
        """One line of (text, style) pieces; style "" is the foreground."""
        return Content.assemble(*((self.glyphs.text(text), style) for text, style in pieces))


def stack(lines: list[Content]) -> Content:
    """Lines one below the other."""
    return Content("\n").join(lines)


def _columns(count: int, width: int) -> tuple[int, int]:
    """Width of the label and of each column; wide panels do not stretch without end."""
    label = {1: 14, 2: 12}.get(count, 9)
    return label, min((width - label) // max(count, 1), 14)


def _header(columns: tuple[str, ...], width: int, pen: Pen) -> Content:
    label, cell = _columns(len(columns), width)
    return pen.line((" " * label + "".join(f"{name:>{cell}}" for name in columns), QUIET))


def _row(row: tuple[str, ...], count: int, width: int, pen: Pen) -> Content:
    label, cell = _columns(count, width)
    name, first, *rest = row
    return pen.line(
        (f"{name:<{label}}", QUIET),
        (f"{first:>{cell}}", ""),
        ("".join(f"{text:>{cell}}" for text in rest), QUIET),
    )


def _gauge(text: str, share: float | None, width: int, pen: Pen) -> Content:
    wide = max(width - len(text) - 2, 0)
    full, empty = bar(share, wide, pen.glyphs)
    return pen.line((f"{text}  ", QUIET), (full, AREA), (empty, "$panel-lighten-2"))


def _picture(view: View, width: int, height: int, pen: Pen) -> list[Content]:
    if height < 1:
        return []
    if view.histogram:
        return _histogram(view.histogram, width, height, pen)
    if view.trend is None:
        return []
    drawn = chart(view.trend, width if height < 3 else width - 6, height, pen.glyphs)
    if height < 3:
        return [pen.line((line, AREA)) for line in drawn]
    scale = ["100 %", *[""] * (height - 2), "0 %"]
    return [
        pen.line((f"{mark:>5} ", QUIET), (line, AREA))
        for mark, line in zip(scale, drawn, strict=True)
    ]


def _histogram(data: Histogram, width: int, height: int, pen: Pen) -> list[Content]:
    """Bars above their scale; the scale goes when there is but one line."""
    if height == 1:
        room = max(width - len(data.low) - len(data.high) - 2, 1)
        (line,) = histogram(data.counts, room, 1, pen.glyphs)
        return [pen.line((f"{data.low} ", QUIET), (line.rstrip(), AREA), (f" {data.high}", QUIET))]
    lines = histogram(data.counts, width, height - 1, pen.glyphs)
    used = max(width // len(data.counts), 1) * len(data.counts)
    scale = data.low + data.high.rjust(used - len(data.low))
    return [*(pen.line((line, AREA)) for line in lines), pen.line((scale, QUIET))]


def _advice(text: str, width: int, room: int, pen: Pen) -> list[Content]:
    """At most three lines, so that the picture keeps its place in a large panel."""
    limit = max(min(room, 3), 0)
    lines = wrap(pen.glyphs.text(text), width, break_on_hyphens=False)
    if len(lines) > limit and limit:
        ellipsis = pen.glyphs.text("…")
        lines = [*lines[: limit - 1], lines[limit - 1][: width - len(ellipsis)] + ellipsis]
    return [pen.line((line, WARN)) for line in lines[:limit]]


def layer_grid(width: int) -> tuple[int, int]:
    """How many layers stand side by side, and the cells of one of them."""
    columns = max(width // LAYER_CELL, 1)
    return columns, width // columns


def layers(rates: tuple[LayerRate, ...], width: int, height: int, glyphs: Glyphs) -> Content:
    """A bar a layer; the worst ones, still in order, where not all have room."""
    pen = Pen(glyphs)
    columns, cell = layer_grid(width)
    shown = worst_layers(rates, columns * height)
    lines = []
    for start in range(0, len(shown), columns):
        pieces: list[tuple[str, str]] = []
        for row in shown[start : start + columns]:
            full, empty = bar(row.rate, max(cell - _LAYER_WORDS - 2, 1), glyphs)
            pieces += [
                (f"{row.layer:>3}  ", QUIET),
                (full, AREA),
                (empty, "$panel-lighten-2"),
                (f"{format_share(row.rate):>8}   ", ""),
            ]
        lines.append(pen.line(*pieces))
    return stack(lines)
