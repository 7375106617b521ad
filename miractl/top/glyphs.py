"""Bars, trends and histograms out of characters, with Unicode blocks or plain ASCII."""

from collections.abc import Sequence
from dataclasses import dataclass

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LEFT_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of one terminal.

    `columns` are steps of a vertical bar from empty to full, `rows` those of a horizontal one.
    """

    columns: str
    rows: str
    track: str  # the empty part of a horizontal bar
    floor: str  # a value too small for a step, so that it differs from no value
    marks: dict[str, str]
    replaced: dict[int, str]

    def text(self, text: str) -> str:
        """The text in characters that this terminal has."""
        return text.translate(self.replaced)


UNICODE = Glyphs(
    columns=_EIGHTHS,
    rows=_LEFT_EIGHTHS,
    track="─",
    floor="▁",
    marks={"ok": "✓", "warn": "!", "unknown": "·"},
    replaced={},
)
ASCII = Glyphs(
    columns=" .:#",
    rows=" #",
    track="-",
    floor=".",
    marks={"ok": "ok", "warn": "!", "unknown": "-"},
    replaced=str.maketrans(
        {"µ": "u", "·": "-", "×": "x", "≥": ">=", "≤": "<=", "●": "*", "─": "-", "…": ".."}
    ),
)


def bar(share: float | None, width: int, glyphs: Glyphs) -> tuple[str, str]:
    """A horizontal bar of `width` cells as (filled, empty); no value leaves it all empty."""
    steps = len(glyphs.rows) - 1
    filled = round(min(max(share or 0.0, 0.0), 1.0) * width * steps)
    full, rest = divmod(filled, steps)
    drawn = glyphs.rows[-1] * full + (glyphs.rows[rest] if rest else "")
    return drawn, glyphs.track * (width - len(drawn))


def column(share: float | None, height: int, glyphs: Glyphs) -> str:
    """A vertical bar of `height` characters, top first; blank without a value."""
    if share is None:
        return " " * height
    steps = len(glyphs.columns) - 1
    filled = round(min(max(share, 0.0), 1.0) * height * steps)
    cells = [glyphs.columns[min(max(filled - level * steps, 0), steps)] for level in range(height)]
    if filled == 0:
        cells[0] = glyphs.floor
    return "".join(reversed(cells))


def chart(values: Sequence[float | None], width: int, height: int, glyphs: Glyphs) -> list[str]:
    """The last `width` values in [0, 1] as `height` lines, newest at the right edge."""
    shown = values[-width:]
    columns = [" " * height] * (width - len(shown))
    columns += [column(value, height, glyphs) for value in shown]
    return ["".join(cells) for cells in zip(*columns, strict=True)]


def histogram(counts: Sequence[int], width: int, height: int, glyphs: Glyphs) -> list[str]:
    """Counts as `height` lines of equally wide bars, the most frequent one at full height."""
    most = max(counts, default=0)
    if not most:
        return [" " * width] * height
    wide = max(width // len(counts), 1)
    bars = [column(count / most if count else None, height, glyphs) for count in counts]
    # A gap of one cell between bars as soon as there is room for one.
    gap = " " if wide > 2 else ""
    lines = [
        "".join(cell * (wide - len(gap)) + gap for cell in row) for row in zip(*bars, strict=True)
    ]
    return [line[:width].ljust(width) for line in lines]
