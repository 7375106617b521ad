"""Where the memory goes: one line for each use, in the order it is claimed.

The first line that no longer fits is the one that breaks a plan.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from miractl.errors import MiractlError
from miractl.units import format_bytes

Place = Literal["device", "host", "disk"]


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes of one use."""

    name: str
    bytes: int
    formula: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """One memory. `total` None is a memory of unknown size, which nothing can break."""

    place: Place
    name: str
    total: int | None
    origin: str
    lines: tuple[Line, ...]

    @property
    def used(self) -> int:
        """Bytes of all lines."""
        return sum(line.bytes for line in self.lines)

    @property
    def left(self) -> int | None:
        """Bytes that no line claims; negative when the lines do not fit."""
        return None if self.total is None else self.total - self.used

    def with_line(self, line: Line) -> "Ledger":
        """The ledger with one line more."""
        return Ledger(self.place, self.name, self.total, self.origin, (*self.lines, line))

    def first_break(self) -> "Refusal | None":
        """The first line that does not fit into what the lines before it leave."""
        sums = accumulate((line.bytes for line in self.lines), initial=0)
        for line, before in zip(self.lines, sums, strict=False):
            if self.total is not None and before + line.bytes > self.total:
                free = max(0, self.total - before)
                return Refusal(line.name, self.name, line.bytes, free)
        return None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "place": self.place,
            "name": self.name,
            "total": self.total,
            "origin": self.origin,
            "lines": [
                {"name": line.name, "bytes": line.bytes, "formula": line.formula}
                for line in self.lines
            ],
            "used": self.used,
            "left": self.left,
        }


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a plan does not run: the first line that breaks it."""

    line: str
    memory: str
    needed: int
    free: int
    lower: str = ""  # what to turn down

    @property
    def message(self) -> str:
        """One line: what, needed and free."""
        return (
            f"{self.line}: {format_bytes(self.needed)} needed, {format_bytes(self.free)} free"
            f" in {self.memory}"
        )

    def error(self) -> MiractlError:
        """For those who cannot go on without the plan."""
        return MiractlError(self.message, hint=self.lower or "miractl plan shows every line")

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "line": self.line,
            "memory": self.memory,
            "needed": self.needed,
            "free": self.free,
            "lower": self.lower,
        }
