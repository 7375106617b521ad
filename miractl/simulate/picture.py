"""Hit rate over slots, one line a policy, as a PNG."""

import io
from collections.abc import Sequence

from miractl.errors import MiractlError
from miractl.policy.registry import DEFAULT, POLICIES
from miractl.simulate.study import BEST, Score


def render_png(title: str, experts: int, scores: Sequence[Score]) -> bytes:
    """A picture of scores over several numbers of slots. Raises MiractlError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        hint = "pip install matplotlib, or use --csv"
        raise MiractlError("a png needs matplotlib, which is not installed", hint=hint) from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for name in POLICIES:
        points = sorted((s.slots, s.hit_rate) for s in scores if s.policy == name)
        if points:
            style = "--" if POLICIES[name].optimum == name else "-"
            width = 2.5 if name in (DEFAULT, BEST) else 1.2
            slots, rates = zip(*points, strict=True)
            shares = [100 * count / experts for count in slots]
            percents = [100 * rate for rate in rates]
            axis.plot(
                shares, percents, style, linewidth=width, marker="o", markersize=3, label=name
            )
    axis.set(title=title, xlabel="experts with a slot, %", ylabel="hit rate, %")
    axis.grid(alpha=0.3)
    axis.legend()
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=150)
    return out.getvalue()
