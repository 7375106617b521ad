"""Make docs/benchmarks.md of the results in bench/results.

    python bench/write_benchmarks.py

A result is JSON of bench/against.py (miractl.against/1), or a table that a script saved as it
printed it (miractl.table/1).
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from miractl.units import format_bytes, format_rate, format_share

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE.parent / "docs" / "benchmarks.md"
TABLE = "miractl.table/1"
HEAD = """# Benchmarks

Generated from `bench/results/` by `bench/write_benchmarks.py`; change the scripts, not this page.
Figures are medians; in brackets the lowest and the highest. Other programs ran on these machines
now and then, so what compares is figures of one table, and best those for a second of processor
time. Weights are random: good for speed, meaningless for text and hit rates.
"""
PEERS = {  # of the same bits first
    "int4": ("llama.cpp Q4_K", "ik_llama Q4_K", "transformers eager float32"),
    "int8": ("llama.cpp Q8_0", "ik_llama Q8_0", "transformers eager float32"),
    "float32": ("transformers grouped_mm float32", "transformers eager float32"),
}


def machine() -> dict[str, object]:
    """What this runs on."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "processor": cpu[1] if cpu else None,
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def save_table(
    out: Path, title: str, note: str, headers: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Write a table as a result."""
    facts = {"schema": TABLE, "title": title, "note": note, "machine": machine()}
    columns: dict[str, object] = {"headers": headers, "rows": rows}
    out.write_text(json.dumps({**facts, **columns}, indent=1, ensure_ascii=False) + "\n")


def grid(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines: list[Sequence[str]] = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def where(facts: dict[str, Any]) -> str:
    """The machine, in words."""
    on = facts["machine"]
    memory = format_bytes(on["memory_bytes"])
    return f"{on['processor']}, {on['processors']} processors, {memory} of memory."


def rates(row: dict[str, Any], part: str, clock: str) -> list[float]:
    """Tokens a second of every counted run."""
    return [lap["tokens"] / lap[clock] for lap in row["laps"][part]]


def spread(values: list[float]) -> str:
    """The middle, and how far the others lie from it."""
    if not values:
        return "n/a"
    return f"{median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def ratios(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Our medians for a CPU second as multiples of the others'."""
    lines = []
    for kind, peers in PEERS.items():
        ours = rows.get(f"miractl {kind}")
        for other in peers:
            theirs = rows.get(other)
            if ours and theirs and ours["laps"]["decode"] and theirs["laps"]["decode"]:
                cells = [
                    f"{part} {median(rates(ours, part, c)) / median(rates(theirs, part, c)):.2f}"
                    for part in ("prefill", "decode")
                    for c in ("cpu_seconds",)
                ]
                lines.append(f"- miractl {kind} / {other}: {', '.join(cells)}")
    return lines


def limited(facts: dict[str, Any]) -> str:
    """One run of bench/against.py with less memory than the model takes, from a cold start."""
    ours = rates(facts["contenders"][0], "decode", "seconds")
    rows = []
    for row in facts["contenders"]:
        laps, theirs = row["laps"]["decode"], rates(row, "decode", "seconds")
        reads = [lap["read_bytes"] / lap["seconds"] for lap in laps]
        shares = [own / all_ for own, all_ in zip(reads, row["sequential"], strict=True)]
        token = (
            format_bytes(median(lap["read_bytes"] / lap["tokens"] for lap in laps))
            if laps
            else "n/a"
        )
        disk = f"{format_rate(median(reads))}, {format_share(median(shares))}" if laps else "n/a"
        peak = format_bytes(max(row["peak_bytes"])) if row["peak_bytes"] else "n/a"
        if row["planned_bytes"]:
            peak += f" of {format_bytes(max(row['planned_bytes']))} planned"
        times = f"{median(ours) / median(theirs):.1f}" if theirs else "n/a"
        memory = format_bytes(row["limit_bytes"])
        cells = [spread(theirs), times, token, disk, peak, "; ".join(row["errors"][:1])]
        rows.append([row["name"], row["weights"], memory, *cells])
    headers = ["engine", "weights", "memory", "decode, tokens/s", "miractl is x times as fast"]
    headers += ["read a token", "disk, of sequential", "peak", "failed"]
    share = format_bytes(facts["limit_bytes"])
    title = f"## Qwen3-30B-A3B shapes, {facts['layers']} layers of {facts['experts']} experts"
    text = (
        f"{where(facts)} Each engine starts cold in a control group: "
        f"{facts['prompt']} tokens of prompt, then {facts['tokens']}, which are counted; "
        f"{_counted(facts['threads'], 'thread')}, {_counted(facts['rounds'], 'round')}, engines in "
        "turns. What the disk gave while tokens were generated is held against direct sequential "
        "reads of the same files right before and right after."
    )
    return "\n".join([f"{title}, memory limited to {share}", "", text, "", grid(headers, rows)])


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("s" if count != 1 else "")


def against(facts: dict[str, Any]) -> str:
    """One run of bench/against.py with everything in memory."""
    shape = f"{facts['layers']} layers of {facts['experts']} experts"
    rows, named = [], {}
    for row in facts["contenders"]:
        named[f"{row['name']} {row['weights']}"] = row
        cells = [
            spread(rates(row, part, clock))
            for part in ("prefill", "decode")
            for clock in ("seconds", "cpu_seconds")
        ]
        peak = format_bytes(max(row["peak_bytes"])) if row["peak_bytes"] else "n/a"
        rows.append([row["name"], row["weights"], *cells, peak, "; ".join(row["errors"][:1])])
    headers = ["engine", "weights", "prefill, tokens/s", "a CPU second", "decode, tokens/s"]
    headers += ["a CPU second", "peak memory", "failed"]
    text = (
        f"{where(facts)} {facts['prompt']} tokens of prompt, then {facts['tokens']}; "
        f"{facts['threads']} thread, {facts['rounds']} rounds, engines in turns."
    )
    lines = ["", "Tokens for a CPU second, as a multiple:", "", *ratios(named)]
    title = f"## Qwen3-30B-A3B shapes, {shape}, everything in memory"
    return "\n".join([title, "", text, "", grid(headers, rows), *(lines if ratios(named) else [])])


def section(path: Path) -> str:
    """One result. Raises ValueError for another schema."""
    facts = json.loads(path.read_text())
    if facts["schema"] == "miractl.against/1":
        return limited(facts) if facts["limit_bytes"] else against(facts)
    if facts["schema"] == TABLE:
        table = grid(facts["headers"], facts["rows"])
        return "\n".join([f"## {facts['title']}", "", f"{where(facts)} {facts['note']}", "", table])
    raise ValueError(f"{path}: schema is {facts['schema']!r}")


def main() -> None:
    """Write the page."""
    sections = [section(path) for path in sorted(RESULTS.glob("*.json"))]
    PAGE.write_text("\n\n".join([HEAD.rstrip(), *sections]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
