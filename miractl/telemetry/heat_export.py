"""Exports of expert heat: CSV, a page to look at, a picture; and the experts nobody ever used.

A file is written beside its target and moved there whole, so that a reader never sees half of one.
"""

import csv
import io
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from miractl.errors import MiractlError
from miractl.outfile import check_target, write_whole
from miractl.telemetry.experts import ExpertTable
from miractl.telemetry.heat_page import render_page
from miractl.telemetry.snapshot import ExpertRow

COLUMNS = (
    *("timestamp", "layer", "expert", "heat", "resident"),
    *("activations", "hits", "misses", "prefetched", "prefetch_used"),
)


def iso_time(timestamp: float) -> str:
    """`2026-11-30T09:20:00.125Z` of unix seconds."""
    moment = datetime.fromtimestamp(timestamp, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def render_csv(table: ExpertTable) -> bytes:
    """One row an expert, those never used included; `resident` is 1 or 0, unknown is empty."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    when = iso_time(table.timestamp)
    for row in table.rows:
        counts = (row.activations, row.hits, row.misses, row.prefetched, row.prefetch_used)
        resident = None if row.resident is None else int(row.resident)
        writer.writerow((when, row.layer, row.expert, f"{row.heat:.6f}", resident, *counts))
    return out.getvalue().encode()


def render_html(table: ExpertTable) -> bytes:
    """A page that needs nothing but itself: layers down, experts across."""
    return render_page(table, iso_time(table.timestamp)).encode()


def render_png(table: ExpertTable) -> bytes:
    """Heat now and tokens since the start, side by side. Raises MiractlError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        hint = "pip install matplotlib, or use --format html"
        raise MiractlError("a png needs matplotlib, which is not installed", hint=hint) from None
    layers, experts = axes_of(table.rows)
    figure = Figure(figsize=(12, max(2.6, 1.4 + 0.22 * len(layers))), layout="constrained")
    FigureCanvasAgg(figure)
    shares = activation_shares(table.rows)
    heats = {(row.layer, row.expert): row.heat for row in table.rows}
    figure.suptitle(f"{table.model} · {iso_time(table.timestamp)}", fontsize=11)
    titles = ("heat now", "tokens since the start, share of the layer")
    for axis, title, values in zip(figure.subplots(1, 2), titles, (heats, shares), strict=True):
        grid = [[values.get((layer, e), float("nan")) for e in range(experts)] for layer in layers]
        image = axis.imshow(grid, aspect="auto", cmap="magma", vmin=0, interpolation="nearest")
        axis.set(title=title, xlabel="expert", ylabel="layer")
        axis.set_yticks(range(len(layers)), [str(layer) for layer in layers], fontsize=7)
        figure.colorbar(image, ax=axis)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=150)
    return out.getvalue()


def axes_of(rows: Iterable[ExpertRow]) -> tuple[list[int], int]:
    """The layers' real indices in order, and the number of experts of a layer."""
    keys = [(row.layer, row.expert) for row in rows]
    return sorted({layer for layer, _ in keys}), max((e for _, e in keys), default=-1) + 1


def activation_shares(rows: Iterable[ExpertRow]) -> dict[tuple[int, int], float]:
    """For each (layer, expert) its share of all activations of the layer; 0 in an unused layer."""
    rows = tuple(rows)
    totals: dict[int, int] = {}
    for row in rows:
        totals[row.layer] = totals.get(row.layer, 0) + row.activations
    return {(r.layer, r.expert): r.activations / max(totals[r.layer], 1) for r in rows}


RENDERERS: dict[str, Callable[[ExpertTable], bytes]] = {
    "csv": render_csv,
    "html": render_html,
    "png": render_png,
}


def export(table: ExpertTable, output: str, kind: str) -> None:
    """Write the table to the file `output`, or to standard output for `-`.

    Raises UsageError for a folder that is not there, MiractlError when the disk refuses.
    """
    if output != "-":
        check_target(Path(output))
    content = RENDERERS[kind](table)
    if output == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        write_whole(Path(output), content)


@dataclass(frozen=True, slots=True)
class ColdLayer:
    """The experts of one layer that no token was ever routed to: prune candidates."""

    layer: int
    experts: tuple[int, ...]
    of: int  # experts in the layer
    activations: int  # of the whole layer: how much this verdict rests on

    @property
    def share(self) -> float:
        """Never used experts over all experts of the layer."""
        return len(self.experts) / self.of

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {
            "layer": self.layer,
            "experts": list(self.experts),
            "of": self.of,
            "share": self.share,
            "activations": self.activations,
        }


def cold(rows: Iterable[ExpertRow]) -> list[ColdLayer]:
    """For every layer, in order, the experts never activated; layers without one included."""
    by_layer: dict[int, list[ExpertRow]] = {}
    for row in rows:
        by_layer.setdefault(row.layer, []).append(row)
    return [
        ColdLayer(
            layer=layer,
            experts=tuple(sorted(row.expert for row in group if row.activations == 0)),
            of=len(group),
            activations=sum(row.activations for row in group),
        )
        for layer, group in sorted(by_layer.items())
    ]
