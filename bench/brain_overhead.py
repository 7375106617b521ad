"""What the brain's decisions cost while decoding, in microseconds a layer and token.

    python bench/brain_overhead.py [--tokens 200] [--policy learned]

One sequence is decoded through the runtime's own objects with a quarter of the experts in slots:
"told" is the policy's part, "served" the cache's, from looking the experts up to the last slot.
Transfers are over at once and nothing is computed. Routing is drawn at random with favourites, in
the shapes of three models. What is learned after a step is learned on a thread beside and not
waited for here. Medians over layers and tokens: of all, and of the best and worst of twenty parts
of the run, because other work on the machine shows. Fails if the best is above 25 microseconds.
"""

import argparse
import sys
import time

import numpy as np
from replay_speed import drawn

from miractl.output import table
from miractl.policy.eviction import Brain
from miractl.policy.heat import HeatTable
from miractl.policy.keys import ExpertKey
from miractl.policy.registry import DEFAULT, RUNNABLE, make_policy, ways_for
from miractl.policy.residency import Residency
from miractl.policy.routing import Routed, Segment
from miractl.runtime.cache import ExpertCache
from miractl.runtime.counters import ExpertCounts
from miractl.runtime.transfer import DEMAND, State, Ticket

SHAPES = {  # layers, experts, k
    "Qwen3-30B-A3B": (48, 128, 8),
    "gpt-oss-20b": (24, 32, 4),
    "demo": (4, 16, 2),
}
SHARE, RESERVE, MOST = 0.25, 5, 25e-6


class AtOnce:
    """A queue whose transfers are over when they are asked for. Tickets are not decisions: one."""

    def __init__(self) -> None:
        self._ticket = Ticket(ExpertKey(0, 0), 0, State.DONE)

    def submit(self, key: ExpertKey, slot: int, rank: float = DEMAND) -> Ticket:
        return self._ticket

    def wait(self, ticket: Ticket) -> None:
        pass

    def cancel(self, ticket: Ticket) -> bool:
        return False


def decide(shape: tuple[int, int, int], policy: str, tokens: int) -> np.ndarray:
    """Seconds, [tokens, layers, 2]: told and served."""
    layers, experts, top = shape
    routing = drawn(tokens, layers, experts, top)
    ids, scores = routing.ids.astype(np.int64), routing.probabilities
    ways = (round(SHARE * experts),) * layers
    heat = HeatTable(layers, experts, top, clock=time.monotonic)
    brain = Brain(make_policy(policy, top, ways[0], heat), heat)
    residency = Residency(sum(ways) + RESERVE, ways_for(policy, ways), 0, brain)
    counts = ExpertCounts(layers, experts)
    cache = ExpertCache(residency, AtOnce(), counts, 1, time.monotonic)
    taken, clock = np.zeros((tokens, layers, 2)), time.perf_counter
    for token in range(tokens):
        segments = (Segment(0, 0, 1, token),)
        for layer in range(layers):
            now, gates = ids[token, layer][None], scores[token, layer][None]
            start = clock()
            with cache.lock:
                residency.record(Routed(layer, now, gates, segments, token))
            told = clock()
            for _ in cache.serve(layer, sorted(set(now[0].tolist()))):
                pass
            taken[token, layer] = told - start, clock() - told
        brain.eviction.tables()  # waits for the thread
    brain.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--policy", choices=[name for name in RUNNABLE if name != "static"])
    options = parser.parse_args()
    rows, ok = [], True
    for policy in [options.policy] if options.policy else [DEFAULT, "heat", "lru"]:
        for model, shape in SHAPES.items():
            taken = decide(shape, policy, options.tokens)
            both = taken[..., 0] + taken[..., 1]
            median = float(np.median(both))
            parts = [float(np.median(part)) for part in np.array_split(both, 20)]
            told, served = np.median(taken.reshape(-1, 2), axis=0)
            figures = (min(parts), median, max(parts), told, served)
            rows.append((policy, model, *(f"{1e6 * seconds:.1f}" for seconds in figures)))
            ok &= min(parts) <= MOST
    headers = ("policy", "model", "best part", "median", "worst part", "told", "served")
    print(f"\n{table(rows, headers)}")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
