"""What a command says: data on stdout, everything else on stderr, in what the terminal can show.

Colour is for terminals only, and never with NO_COLOR or TERM=dumb. Where the encoding cannot show a
character, a plain one stands in: writing never raises UnicodeEncodeError.
"""

import codecs
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from miractl.errors import MiractlError

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_MARKS = {
    "ok": ("✓", "ok"),
    "warn": ("!", "warn"),
    "fail": ("✗", "FAIL"),
    "skip": ("-", "skip"),
    "unknown": ("?", "unkn"),
}
_PLAIN = str.maketrans(
    {"µ": "u", "·": "-", "…": "...", "≥": ">=", "≤": "<=", "→": "->", "×": "x", "—": "-", "–": "-"}
    | {"✓": "ok", "✗": "FAIL", "│": "|", "─": "-", "█": "#", "░": "."}
)


def use_color(stream: TextIO | None) -> bool:
    """Whether `stream` is a terminal that wants colour. None is a stream that was closed."""
    if stream is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def use_unicode(stream: TextIO | None) -> bool:
    """Whether `stream` may get more than ASCII: its encoding is a UTF, its locale is not C."""
    # Python writes UTF-8 under LC_ALL=C, but whoever set that asked for plain text.
    if stream is None or os.environ.get("LC_ALL") in ("C", "POSIX"):
        return False
    try:
        return codecs.lookup(stream.encoding or "ascii").name.startswith("utf")
    except LookupError:
        return False


def open_stdout() -> TextIO:
    """Standard output. Raises MiractlError where the process was started without one."""
    if sys.stdout is None:
        raise MiractlError("standard output is closed", hint="without >&-")
    return sys.stdout


def table(rows: Sequence[Sequence[object]], headers: Sequence[str]) -> str:
    """Plain text in columns two blanks apart; numbers to the right, None as `n/a`."""
    cells = [["n/a" if cell is None else str(cell) for cell in row] for row in rows]
    lines = [[header.upper() for header in headers], *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = [
        bool(rows) and all(isinstance(cell, int | float | None) for cell in column)
        for column in zip(*rows, strict=True)
    ] or [False] * len(headers)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


class Output:
    """The two streams of one command. None for colour or unicode: each stream decides itself."""

    def __init__(
        self, json: bool = False, color: bool | None = None, unicode: bool | None = None
    ) -> None:
        self.is_json = json
        self._color = color
        self._unicode = unicode

    def use_color(self, stream: TextIO | None) -> bool:
        """Whether this output colours what goes to `stream`."""
        return use_color(stream) if self._color is None else self._color

    def use_unicode(self, stream: TextIO | None) -> bool:
        """Whether this output writes more than ASCII to `stream`."""
        return use_unicode(stream) if self._unicode is None else self._unicode

    def style(self, text: str, name: str, stream: TextIO | None = None) -> str:
        """`text` in a colour or weight (`red`, `bold`, ...), plain where there is no colour."""
        if not self.use_color(stream or sys.stdout):
            return text
        return f"\x1b[{_STYLES[name]}m{text}\x1b[0m"

    def mark(self, status: str) -> str:
        """The sign for ok, warn, fail, skip or unknown on stdout: a glyph, or a word in ASCII."""
        glyph, word = _MARKS[status]
        return glyph if self.use_unicode(sys.stdout) else word

    def data(self, text: str) -> None:
        """Write a line of data to stdout. Raises MiractlError where that is closed."""
        self._write(open_stdout(), text)

    def json(self, obj: Any) -> None:
        """Write `obj` to stdout as readable JSON. Raises ValueError for NaN and infinity."""
        ascii_only = not self.use_unicode(sys.stdout)
        text = json.dumps(obj, indent=2, ensure_ascii=ascii_only, allow_nan=False)
        self._write(open_stdout(), text)

    def note(self, text: str) -> None:
        """Write a line to stderr."""
        self._write(sys.stderr, text)

    def warn(self, text: str) -> None:
        """Write a warning to stderr."""
        self._write(sys.stderr, f"{self.style('warning:', 'yellow', sys.stderr)} {text}")

    def error(self, error: MiractlError) -> None:
        """Write an error to stderr: one line that says what, one that says what to do next."""
        self._write(sys.stderr, f"{self.style('error:', 'red', sys.stderr)} {error.message}")
        if error.hint:
            self._write(sys.stderr, f"{self.style('hint:', 'cyan', sys.stderr)}  {error.hint}")

    def _write(self, stream: TextIO | None, text: str) -> None:
        if stream is None:
            return  # stderr is closed: nobody wants to know
        if not self.use_unicode(stream):
            text = text.translate(_PLAIN)
        encoding = stream.encoding or "utf-8"
        try:
            stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        except OSError as error:
            # Nothing is worth less than a log on a full disk: a server goes on without it.
            if stream is not sys.stderr or isinstance(error, BrokenPipeError):
                raise
