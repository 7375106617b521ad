"""A report as text: one line a check under its category, then what to do about it.

The short form leaves out what is well and what was skipped. Skips for one reason share a line.
"""

import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby

from miractl import __version__
from miractl.doctor.check import Result, Status
from miractl.doctor.report import Report, docs_anchor
from miractl.output import Output

_COLORS = {
    Status.CRASH: "red",
    Status.FAIL: "red",
    Status.WARN: "yellow",
    Status.UNKNOWN: "cyan",
    Status.OK: "green",
    Status.SKIP: "dim",
}
_COUNTED = {
    Status.CRASH: "crashed",
    Status.FAIL: "failed",
    Status.WARN: "warning",
    Status.UNKNOWN: "unknown",
    Status.SKIP: "skipped",
    Status.OK: "ok",
}
_QUIET = (Status.OK, Status.SKIP)
_MARK_WIDTH = {True: 1, False: 4}


class _Page:
    """Lines of fixed columns: mark, name, text."""

    def __init__(self, out: Output, plain: bool, names: Sequence[str], width: int | None) -> None:
        self.out = out
        self.width = width
        self.mark_width = _MARK_WIDTH[not plain]
        self.name_width = max(map(len, names), default=0)
        self.indent = " " * (2 + self.mark_width + 1 + self.name_width + 2)

    def wrap(self, text: str, first: str, rest: str) -> str:
        """`text` after `first`; further lines after `rest`."""
        if self.width is None:
            return first + text
        room = max(20, self.width - len(rest))
        lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
        return f"\n{rest}".join([first + lines[0], *lines[1:]])

    def row(self, status: Status, name: str, text: str) -> str:
        """One verdict."""
        known = "fail" if status is Status.CRASH else str(status)
        mark = self.out.style(self.out.mark(known).ljust(self.mark_width), _COLORS[status])
        return self.wrap(text, f"  {mark} {name:<{self.name_width}}  ", self.indent)

    def advice(self, result: Result) -> Iterator[str]:
        """What to do, the commands as they are typed, and where to read more."""
        remedy, deeper = result.remedy, self.indent + "  "
        if remedy is not None:
            yield self.wrap(remedy.text, deeper, deeper)
            yield from (f"{deeper}  {command}" for command in remedy.commands)
        if result.finding.status not in _QUIET:
            yield self.out.style(f"{deeper}docs: {docs_anchor(result.check.id)}", "dim")


def _folded(results: Sequence[Result], category: Sequence[Result]) -> tuple[str, str]:
    """Name and text of skips that share their reason: `gpu.*` when that is the whole category."""
    ids = [result.check.id for result in results]
    prefix = ids[0].partition(".")[0]
    whole = len(ids) > 1 and len(ids) == len(category)
    name = f"{prefix}.*" if whole and all(i.startswith(f"{prefix}.") for i in ids) else ids[0]
    more = "" if name.endswith("*") or len(ids) == 1 else f" (and {', '.join(ids[1:])})"
    return name, f"skipped: {results[0].finding.text}{more}"


def _skip_reason(result: Result) -> str | None:
    return result.finding.text if result.finding.status is Status.SKIP else None


def _rows(results: Sequence[Result]) -> Iterator[tuple[str, str, Result]]:
    """Name, text and (first) result of every line of one category."""
    for reason, group in groupby(results, key=_skip_reason):
        members = list(group)
        if reason is not None:
            yield *_folded(members, results), members[0]
        else:
            yield from ((r.check.id, r.finding.text, r) for r in members)


def _count(report: Report) -> str:
    parts = [
        f"{count} {_COUNTED[status]}" + ("s" if status is Status.WARN and count > 1 else "")
        for status in _COUNTED
        if (count := report.counts[status])
    ]
    return ", ".join(parts) or "nothing checked"


def header(report: Report) -> str:
    """What examined what, and when."""
    moment = datetime.fromtimestamp(report.machine.timestamp, UTC)
    profile = f" · profile {report.profile}" if report.profile else ""
    return f"miractl doctor {__version__}{profile} · {moment:%Y-%m-%d %H:%M} UTC"


def render(report: Report, out: Output, *, short: bool, plain: bool, width: int | None) -> str:
    """The report as text.

    Args:
        report: what was found.
        out: gives marks and colours.
        short: leave out what is well and what was skipped.
        plain: marks are words, as where the terminal shows only ASCII.
        width: columns of the terminal; None: do not wrap.
    """
    shown = [r for r in report.results if not (short and r.finding.status in _QUIET)]
    categories = {
        category: list(_rows(list(group)))
        for category, group in groupby(shown, key=lambda result: result.check.category)
    }
    names = [name for rows in categories.values() for name, _, _ in rows]
    page = _Page(out, plain, names, width)
    lines = [header(report), ""]
    for category, rows in categories.items():
        lines.append(out.style(category, "bold"))
        for name, text, result in rows:
            lines.append(page.row(result.finding.status, name, text))
            lines.extend(page.advice(result))
    if shown:
        lines.append("")
    lines.append(f"{_count(report)} · exit {report.exit_code:d}")
    return "\n".join(lines)
