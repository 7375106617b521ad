"""How fast real kernels read an expert: what the simulations take for a card's memory rate."""

import csv
from collections.abc import Sequence
from pathlib import Path

from miractl.units import format_rate, format_seconds

TIMES = Path(__file__).with_name("kernel_times.csv")
SOURCE = "casys-kaist/LLMServingSim on GitHub, commit 5daddb21, MIT"
# Bytes per second of the cards' memories, from public data sheets.
CARDS = {"H100": 3350e9, "RTX A6000": 768e9, "RTX 3090": 936e9}
REACHED = 0.75  # of a data sheet's rate: the middle of 67 to 84 %, measured for one token


def markdown(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def section() -> str:
    """The measured kernels, and the share of the memory's rate that they reach."""
    rows = []
    with TIMES.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            size = 3 * int(row["hidden"]) * int(row["intermediate"]) * 2
            seconds = sum(int(row[f"{name}_ns"]) for name in ("w1", "w3", "w2")) / 1e9
            rows.append(
                (
                    *(row["gpu"], row["model"], row["tokens"], format_seconds(seconds)),
                    *(format_rate(size / seconds), f"{size / seconds / CARDS[row['gpu']]:.0%}"),
                )
            )
    return _TEXT.format(
        source=SOURCE,
        table=markdown(
            ("card", "model", "tokens", "an expert", "reads", "of the data sheet"), rows
        ),
        reached=f"{REACHED:.0%}",
    )


_TEXT = """\
## How long an expert takes on a GPU

The three products of a bfloat16 expert, measured by others, copied to
`bench/articles/kernel_times.csv` ({source}):

{table}
128 tokens take an expert 1.1 to 1.9 times as long as one does: reading its weights is what takes
time. The simulations take {reached} of a data sheet's rate for everything that a GPU reads.
"""
