"""All cache policies on recorded routing, at 12.5, 25 and 50 % of the experts.

    python bench/policies.py [--traces FOLDER] [--each]

Traces are .npz files as `miractl replay` reads them: that of the demo model, and those in FOLDER,
by default `traces/` of the data folder, ../shared/data or MIRACTL_DATA. Hit rates are means over
the traces. "Gap" is the share of the way from LRU to the optimum with the same freedoms, and "by
layer" the same to Belady with one cache a layer. Caches start cold and learners empty. Fails if the
learned policies close less of the gap than AIMS on the traces of FOLDER, or if the default is below
another online policy on any trace.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

from miractl.errors import UsageError
from miractl.native.replay import Routing
from miractl.output import table
from miractl.paths import DEMO_TRACE
from miractl.policy.registry import DEFAULT, POLICIES
from miractl.simulate.study import Score, compare, routing_of, slots_for
from miractl.telemetry.trace import read_trace

SHARES = (0.125, 0.25, 0.5)
DATA = Path(os.environ.get("MIRACTL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
RIVALS = ("lru", "lfu", "random", "heat", "lru-shift", "lfu-shift", "heat-shift", "lru-pool")
# Share of the experts: who is judged, and the gap to close.
AIMS = {0.125: (DEFAULT, 0.40), 0.25: (DEFAULT, 0.45), 0.5: (DEFAULT, 0.50)}


def read_all(folder: Path) -> dict[str, Routing]:
    """Every routing trace of a folder; other files are passed over."""
    found = {}
    for path in sorted(folder.glob("*.npz")):
        try:
            found[path.stem] = routing_of(read_trace(path))
        except UsageError as error:
            print(f"left out: {error.message}")
    return found


def mean(values: list[float | None]) -> str | None:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3f}" if known else None


def print_share(share: float, scores: dict[str, list[Score]], each: bool) -> None:
    rows = []
    for at, name in enumerate(POLICIES):
        own = [every[at] for every in scores.values()]
        rates = [score.hit_rate for score in own]
        rows.append(
            (
                *(name, mean(list(rates)), mean([score.gap for score in own])),
                mean([score.layer_gap for score in own]),
                *((f"{rate:.3f}" for rate in rates) if each else ()),
            )
        )
    headers = ("policy", "hits", "gap", "by layer", *(scores if each else ()))
    print(f"\n{share:.1%} of the experts\n{table(rows, headers)}")


def losses(scores: dict[str, list[Score]]) -> list[str]:
    """Where the default is below another policy that does not know the future."""
    wrong: list[str] = []
    for trace, every in scores.items():
        rates = {score.policy: score.hit_rate for score in every}
        wrong.extend(
            f"{trace}: {DEFAULT} {rates[DEFAULT]:.3f}, {rival} {rates[rival]:.3f}"
            for rival in RIVALS
            if rates[DEFAULT] < rates[rival]
        )
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, default=DATA / "traces")
    parser.add_argument("--each", action="store_true", help="a column for each trace")
    options = parser.parse_args()
    recorded = read_all(Path(options.traces))
    if not recorded:
        print(f"no traces in {options.traces}, only the demo model's; --traces FOLDER names others")
    traces = {"demo": routing_of(read_trace(DEMO_TRACE)), **recorded}
    print(f"{len(traces)} traces, {sum(r.ids.size for r in traces.values()):,} accesses")
    ok = True
    for share in SHARES:
        start = time.process_time()
        scores = {
            name: compare(routing, slots_for(share, routing), list(POLICIES))
            for name, routing in traces.items()
        }
        print_share(share, scores, options.each)
        print(f"{time.process_time() - start:.0f} s of one core")
        for loss in losses(scores):
            print(f"LOSS {loss}")
            ok = False
        if not recorded:
            continue
        judged, aim = AIMS[share]
        gaps = [s.gap for name in recorded for s in scores[name] if s.policy == judged]
        reached = float(np.mean([gap for gap in gaps if gap is not None]))
        print(f"gap of {judged}: {reached:.3f}, at least {aim:.2f} expected")
        ok &= reached >= aim
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
