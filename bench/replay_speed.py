"""Speed of the replays, in accesses (one expert of one token and layer) of one core.

    python bench/replay_speed.py [--tokens 4000]

Routing is drawn at random with favourites, in the shapes of two models, with a quarter of the
experts in slots. Seconds are those of this process alone, so other load counts little.
"""

import argparse
import time

import numpy as np

from miractl.native.replay import Routing
from miractl.output import table
from miractl.policy.registry import POLICIES
from miractl.simulate.study import hits, slots_for

SHAPES = {"gpt-oss-20b": (24, 32, 4), "DeepSeek-V2-Lite": (26, 64, 6)}  # layers, experts, k
SHARE = 0.25


def drawn(tokens: int, layers: int, experts: int, top: int) -> Routing:
    """Routing that repeats itself about as much as real models do."""
    rng = np.random.default_rng(20260101)
    liking = rng.gumbel(size=(layers, experts))
    state = np.zeros((layers, experts))
    ids = np.empty((tokens, layers, top), np.int64)
    for token in range(tokens):
        state = 0.7 * state + rng.normal(size=state.shape)
        ids[token] = np.argsort(-(liking + state), axis=1)[:, :top]
    return Routing(ids, experts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=4000)
    tokens = parser.parse_args().tokens
    for model, shape in SHAPES.items():
        routing = drawn(tokens, *shape)
        rows = []
        for policy in POLICIES.values():
            start = time.process_time()
            rates, _ = hits(policy, routing, slots_for(SHARE, routing), token_seconds=0.05)
            seconds = time.process_time() - start
            per_layer = 1e6 * seconds / (routing.tokens * routing.layers)
            speed = routing.ids.size / seconds / 1e6
            rows.append((policy.name, f"{speed:.2f}", f"{per_layer:.2f}", f"{rates.mean():.3f}"))
        headers = ("policy", "million accesses/s", "microseconds a layer", "hits")
        print(f"\n{model}, {routing.ids.size:,} accesses\n{table(rows, headers)}")


if __name__ == "__main__":
    main()
