"""Next-layer prediction from routing alone: recall and calibration, online from a cold start.

    python bench/prediction.py [--traces FOLDER]

Traces as for bench/policies.py. Recall at n is the share of a layer's chosen experts that are among
the n most probable, known as soon as the layer before has chosen; the first layer is left out.
"Off" is the largest difference between predicted and observed frequency over bins of 0.05 with at
least 1,000 predictions: of the predictor, and of what the gate of bets makes of it by its record.
`markov` are the plain tables of the layer and of the token before. Fails if a figure is worse than
its bound.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from policies import DATA, read_all

from miractl.native.bets import Bets, BetsState, Moment
from miractl.native.predictor import BINS, Predictor, PredictorState
from miractl.native.replay import Routing
from miractl.output import table
from miractl.policy.markov import MarkovTable
from miractl.policy.routing import Routed, Segment

AIM, MOST_OFF = 0.72, 0.07
MARKOV_TOKENS = 1500  # the tables are Python: the beginning of a trace is enough


def markov_recall(routing: Routing) -> float:
    """Recall at k of the runtime's own tables."""
    markov = MarkovTable(routing.layers, routing.experts, routing.top)
    found, tokens = 0, min(MARKOV_TOKENS, routing.tokens)
    for token in range(tokens):
        whole = (Segment(0, 0, 1, token),)
        ids = routing.ids[token].astype(np.int64)
        for layer in range(routing.layers):
            gates = routing.probabilities[token, layer, None]
            markov.observe(Routed(layer, ids[layer, None], gates, whole, token))
            probabilities = markov.guess(1)
            if probabilities is not None:
                best = np.argsort(-probabilities, kind="stable")[: routing.top]
                found += len(np.intersect1d(best, ids[layer + 1]))
    return found / (tokens * (routing.layers - 1) * routing.top)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, default=DATA / "traces")
    folder = parser.parse_args().traces
    traces = read_all(folder)
    if not traces:
        print(f"no traces in {folder}: nothing measured; --traces FOLDER names others")
        return
    rows, sums = [], np.zeros((3, BINS))
    for name, routing in traces.items():
        state = PredictorState(routing.layers, routing.experts, routing.top)
        start = time.process_time()
        probabilities = Predictor(state).foresee(routing)
        seconds = time.process_time() - start
        k = routing.top
        ranks = ranks_of(probabilities, routing)[:, 1:]
        recalls = [float((ranks < n).mean()) for n in (k, 3 * k // 2, 2 * k)]
        bins = sorted_in(calibrated(probabilities, routing), routing)
        sums += bins
        offs = off(sorted_in(probabilities, routing)), off(bins)
        speed = f"{routing.ids.size / seconds / 1e6:.2f}"
        rows.append((name, markov_recall(routing), *recalls, *offs, speed))
    shown = [(row[0], *(f"{value:.3f}" for value in row[1:7]), row[7]) for row in rows]
    headers = ("trace", "markov at k", "at k", "at 1.5 k", "at 2 k", "off", "gate off", "million/s")
    print(table(shown, headers))
    reached = float(np.mean([row[2] for row in rows]))
    worst = max(row[6] for row in rows)
    print(f"mean recall at k: {reached:.3f}, at least {AIM} expected")
    print(f"gate off: {worst:.3f} at most, {off(sums):.3f} over all; at most {MOST_OFF} expected")
    sys.exit(0 if reached >= AIM and worst <= MOST_OFF else 1)


def ranks_of(probabilities: np.ndarray, routing: Routing) -> np.ndarray:
    """Places of the chosen experts, [tokens, layers, top]; the most probable is 0."""
    ranks = np.empty(routing.ids.shape, np.int32)
    for token, rows in enumerate(probabilities):
        chosen = np.take_along_axis(rows, routing.ids[token].astype(np.int64), axis=1)
        ranks[token] = (rows[:, None, :] > chosen[:, :, None]).sum(axis=2)
    return ranks


def calibrated(probabilities: np.ndarray, routing: Routing) -> np.ndarray:
    """The probabilities as the gate of bets believes them, learning as it goes."""
    bets = Bets(BetsState(routing.layers, routing.experts, 1, price=0.0))  # nobody is too unlikely
    nobody = np.zeros(routing.experts, np.uint8)
    result = np.empty_like(probabilities)
    for token, rows in enumerate(probabilities):
        for layer, row in enumerate(rows):
            bets.choose(Moment(layer=layer, ahead=1), row, nobody)
            result[token, layer] = bets.state.sure
            bets.judge(layer, routing.ids[token, layer].tolist(), fetch=True, transfer=1.0)
    return result


def sorted_in(probabilities: np.ndarray, routing: Routing) -> np.ndarray:
    """By probability, all layers but the first: predictions, their sum, and how many came true."""
    chosen = np.zeros(probabilities.shape, bool)
    np.put_along_axis(chosen, routing.ids.astype(np.int64), True, axis=2)
    said, came = probabilities[:, 1:].ravel(), chosen[:, 1:].ravel()
    bins = np.minimum((said * BINS).astype(int), BINS - 1)
    return np.stack([np.bincount(bins, w, BINS) for w in (None, said, came)])


def off(bins: np.ndarray) -> float:
    """The largest difference of frequencies over the bins with enough predictions."""
    predictions, expected, observed = bins
    enough = predictions >= 1000
    return float((np.abs(expected - observed)[enough] / predictions[enough]).max())


if __name__ == "__main__":
    main()
