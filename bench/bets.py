"""Do bets pay? Time per token with prefetches relative to none, on recorded routing and one link.

    python bench/bets.py [--traces FOLDER]

Traces as for bench/policies.py. An eighth, a quarter and half of the experts have slots; who is in
them is learned, one cache a layer, and does not depend on bets. First by the ratio of an expert's
transfer to a layer's compute, then by link rate for bfloat16 experts of three models, whose layers
compute as long as LAYER says. `bets` are by the learned predictor on the next layer, `chunks` up to
three layers ahead with transfers that can be left at every eighth. The other predictors know
nothing, or lie: `shuffled` has its experts permuted, `random` draws, `turncoat` is right and wrong
by turns of 100 tokens, `adversary` says the opposite in every other layer, at random. Fails if a
bound is broken.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from policies import DATA, read_all

from miractl.native.bets import Bets, BetsState, Course, Link, run_timeline
from miractl.native.learner import Learner, LearnerState, discount_for, window_for
from miractl.native.predictor import Predictor, PredictorState
from miractl.native.replay import Cache, Kind, Outcome, Routing, Rule, replay
from miractl.output import table

SHARES = (0.125, 0.25, 0.5)
RATIOS = (0.1, 0.25, 0.5, 1, 2, 4, 10)
BOUNDS = {0.5: ("bets", 0.85), 1: ("bets", 0.90), 2: ("chunks", 0.93)}  # means over traces, shares
MOST, STAGED, HORIZON, CHUNKS = 1.01, 6, 3, 8
QUIET = 0.05  # bets a layer that a shuffled predictor may still place
RATES = (1, 2, 4, 8, 16, 32, 64)  # GB/s
EXPERTS = {"Qwen3-30B-A3B": 9_437_184, "gpt-oss-20b": 49_766_400, "Mixtral-8x7B": 352_321_536}
LAYER = {"Qwen3-30B-A3B": 0.5e-3, "gpt-oss-20b": 1e-3, "Mixtral-8x7B": 2e-3}  # seconds, assumed


class Way(NamedTuple):
    """A way of betting: whose guesses, how far ahead, in how many chunks."""

    guesses: str
    horizon: int = 1
    chunks: int = 1


WAYS = {
    "bets": Way("learned"),
    "chunks": Way("learned", HORIZON, CHUNKS),
    "shuffled": Way("shuffled"),
    "random": Way("random"),
    "turncoat": Way("turncoat"),
    "adversary": Way("adversary"),
}


def guesses_of(routing: Routing) -> dict[str, np.ndarray]:
    """Guesses [horizon, tokens, layers, experts] of every predictor."""
    sizes = (routing.layers, routing.experts, routing.top)
    learned = np.stack(
        [
            Predictor(PredictorState(*sizes, ahead=ahead)).foresee(routing)
            for ahead in range(1, HORIZON + 1)
        ]
    )
    rng = np.random.default_rng(0)
    nearest = learned[:1]
    permuted = rng.permuted(np.tile(np.arange(routing.experts), (routing.layers, 1)), axis=1)
    right = np.full(nearest.shape, 0.05, np.float32)
    np.put_along_axis(right, routing.ids[None].astype(np.int64), 0.95, axis=3)
    away = (np.arange(routing.tokens) // 100) % 2 == 1
    turncoat = right.copy()
    turncoat[:, away] = 1 - turncoat[:, away]
    lies = rng.random((1, *nearest.shape[1:3], 1), dtype=np.float32) < 0.5
    return {
        "learned": learned,
        "shuffled": np.ascontiguousarray(
            nearest[:, :, np.arange(routing.layers)[:, None], permuted]
        ),
        "random": rng.random(nearest.shape, dtype=np.float32),
        "turncoat": turncoat,
        "adversary": np.where(lies, 1 - right, right),
    }


def residents(routing: Routing, share: float) -> Outcome:
    """Who has a slot, as learned, one cache a layer."""
    slots = max(1, round(share * routing.experts))
    discount, window = discount_for(slots, routing.top), window_for(slots, routing.top)
    sizes = (routing.layers, routing.experts, routing.top)
    learner = Learner(LearnerState(*sizes, discount, window=window))
    cache = Cache((slots,) * routing.layers)
    return replay(routing, cache, Rule(Kind.LEARNED, learner=learner), residents=True)


def course(
    routing: Routing, outcome: Outcome, guesses: np.ndarray, ratio: float, way: Way
) -> Course:
    """One recording at one ratio of transfer to compute."""
    state = BetsState(
        *(routing.layers, routing.experts, STAGED),
        classes=max(1, way.horizon),
        chunks=way.chunks,
    )
    link = Link(ratio, 1.0, horizon=way.horizon)
    return run_timeline(routing, outcome, guesses, link, Bets(state))


class Found(NamedTuple):
    """One run: time relative to none, bets a layer, share of the link's time in vain."""

    time: float
    issued: float
    wasted: float


Results = dict[tuple[float, float, str], list[Found]]  # by share, ratio and way


def measure(traces: dict[str, Routing], ratios: list[float]) -> Results:
    """Everything, trace after trace."""
    found: Results = defaultdict(list)
    for routing in traces.values():
        guesses = guesses_of(routing)
        for share in SHARES:
            outcome = residents(routing, share)
            for ratio in ratios:
                idle = course(routing, outcome, guesses["learned"], ratio, Way("learned", 0))
                for name, way in WAYS.items():
                    own = course(routing, outcome, guesses[way.guesses], ratio, way)
                    found[share, ratio, name].append(
                        Found(
                            own.seconds / idle.seconds,
                            own.issued / routing.tokens / routing.layers,
                            own.wasted_seconds / max(own.moved, 1e-12),
                        )
                    )
    return found


def average(found: list[Found]) -> float:
    return float(np.mean([one.time for one in found]))


def row(cells: list[list[Found]]) -> tuple[str, ...]:
    """The means, and the worst of all."""
    worst = max(one.time for cell in cells for one in cell)
    return (*(f"{average(cell):.3f}" for cell in cells), f"{worst:.4f}")


def print_ratios(found: Results) -> None:
    for share in SHARES:
        rows = [(f"{r:g}", *row([found[share, r, name] for name in WAYS])) for r in RATIOS]
        print(f"\n{share:.1%} of the experts have slots\n")
        print(table(rows, ("transfer/compute", *WAYS, "worst")))


def ratio_of(model: str, rate: float) -> float:
    return EXPERTS[model] / (rate * 1e9) / LAYER[model]


def print_links(found: Results) -> None:
    for model in EXPERTS:
        rows = []
        for rate in RATES:
            ratio = ratio_of(model, rate)
            cells = [[f for s in SHARES for f in found[s, ratio, name]] for name in WAYS]
            rows.append((f"{rate} GB/s", f"{ratio:.2g}", *row(cells)))
        size = f"{EXPERTS[model] / 1e6:.1f} MB"
        print(f"\nexperts of {model}, {size}; a layer computes {LAYER[model] * 1e3:g} ms\n")
        print(table(rows, ("link", "transfer/compute", *WAYS, "worst")))


def broken(found: Results) -> list[str]:
    """Every bound that does not hold."""
    wrong = [
        f"{name}, {share:.1%}, ratio {ratio:.3g}: {one.time:.4f}, at most {MOST} expected"
        for (share, ratio, name), cell in found.items()
        for one in cell
        if one.time > MOST
    ]
    for ratio, (name, bound) in BOUNDS.items():
        reached = float(np.mean([average(found[share, ratio, name]) for share in SHARES]))
        print(f"{name} at ratio {ratio:g}: {reached:.3f}, at most {bound} expected")
        if reached > bound:
            wrong.append(f"{name} at ratio {ratio:g}: {reached:.3f}, at most {bound} expected")
    most = max(
        float(np.mean([one.issued for one in cell]))
        for (_, _, name), cell in found.items()
        if name == "shuffled"
    )
    print(f"shuffled: at most {most:.3f} bets a layer, at most {QUIET} expected")
    if most > QUIET:
        wrong.append(f"shuffled: {most:.3f} bets a layer, at most {QUIET} expected")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, default=DATA / "traces")
    folder = parser.parse_args().traces
    traces = read_all(folder)
    if not traces:
        print(f"no traces in {folder}: nothing measured; --traces FOLDER names others")
        return
    links = [ratio_of(model, rate) for model in EXPERTS for rate in RATES]
    found = measure(traces, sorted({*RATIOS, *links}))
    print_ratios(found)
    print_links(found)
    print()
    wrong = broken(found)
    for line in wrong:
        print(f"BROKEN {line}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
