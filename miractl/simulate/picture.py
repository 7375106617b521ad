"""Hit rate over slots, one line a policy, and times on a link, as a PNG."""

import io
from collections.abc import Sequence
from typing import Any

from miractl.errors import MiractlError
from miractl.policy.registry import DEFAULT, POLICIES
from miractl.simulate.linked import LinkScore
from miractl.simulate.study import BASE, BEST, Score

SLOTS = "experts with a slot, %"


def render_png(
    title: str, experts: int, scores: Sequence[Score], linked: Sequence[LinkScore] = ()
) -> bytes:
    """A picture of scores over several numbers of slots; on a link also the time of a token.

    Raises MiractlError without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        hint = "pip install matplotlib, or use --csv"
        raise MiractlError("a png needs matplotlib, which is not installed", hint=hint) from None
    figure = Figure(figsize=(8, 9 if linked else 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 if linked else 1, squeeze=False)[:, 0]
    for name in POLICIES:
        points = sorted((s.slots, s.hit_rate) for s in scores if s.policy == name)
        if points:
            style = "--" if POLICIES[name].optimum == name else "-"
            width = 2.5 if name in (DEFAULT, BEST) else 1.2
            _line(axes[0], experts, points, 100, name, style, width)
    axes[0].set(title=title, xlabel=SLOTS, ylabel="hit rate, %")
    if linked:
        _draw_times(axes[1], experts, linked)
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend()
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=150)
    return out.getvalue()


def _draw_times(axis: Any, experts: int, linked: Sequence[LinkScore]) -> None:
    """LRU and the default, with and without prefetches."""
    for name in (BASE, DEFAULT):
        own = [score for score in linked if score.policy == name]
        times = sorted((score.slots, score.seconds) for score in own)
        without = sorted((score.slots, score.seconds_without) for score in own)
        if own:
            _line(axis, experts, times, 1e3, f"{name}, prefetches", "-", 2)
            _line(axis, experts, without, 1e3, name, ":", 2)
    axis.set(xlabel=SLOTS, ylabel="time of a token, ms")


def _line(
    axis: Any,
    experts: int,
    points: Sequence[tuple[int, float]],
    scale: float,
    label: str,
    style: str,
    width: float,
) -> None:
    shares = [100 * slots / experts for slots, _ in points]
    values = [scale * value for _, value in points]
    axis.plot(shares, values, style, linewidth=width, marker="o", markersize=3, label=label)
