"""Hits of our replay and of moe-policylang's on one recording: they have to be the same.

    python bench/policylang.py [--trace FILE.npz] [--tokens 3000]

Installs moe-policylang and numpy in an environment of their own, in miractl's cache folder. Without
--trace: the first trace of the data folder, ../shared/data or MIRACTL_DATA. Fails if a count that
has to be equal is not.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from miractl.native.replay import Cache, Kind, Routing, Rule, replay
from miractl.output import table
from miractl.paths import cache_dir
from miractl.simulate.study import routing_of, slots_for
from miractl.telemetry.trace import read_trace

VERSION = "1.15.0"
SHARES = (0.125, 0.25, 0.5)
DATA = Path(os.environ.get("MIRACTL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
CHILD = Path(__file__).with_name("policylang_peer.py")


def environment() -> Path:
    """The Python of an environment with the peer, made at the first call."""
    folder = cache_dir() / "bench" / f"moe-policylang-{VERSION}"
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "--no-deps", f"moe-policylang=={VERSION}"], check=True)
        subprocess.run([*install, "numpy"], check=True)
        done.touch()
    return python


def rows_of(routing: Routing) -> NDArray[np.float32]:
    """What the peer wants: a number for every expert [tokens, layers, experts], chosen ones high.

    The same order in every row, so that both replays know the same.
    """
    rows = np.zeros((routing.tokens, routing.layers, routing.experts), np.float32)
    high = np.broadcast_to(np.arange(routing.top, 0, -1, dtype=np.float32), routing.ids.shape)
    np.put_along_axis(rows, routing.ids.astype(np.int64), high, axis=2)
    return rows


def theirs(routing: Routing, slots: list[int]) -> dict[str, NDArray[np.int64]]:
    """Hits by policy and number of slots, and the `order` in which a token's experts are taken."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "rows.npz", Path(folder) / "found.npz"
        np.savez(given, rows=rows_of(routing), top=routing.top, slots=np.array(slots))
        # Isolated: this folder holds a module of the peer's name.
        command = [str(environment()), "-I", str(CHILD), str(given), str(found)]
        subprocess.run(command, check=True)
        with np.load(found) as data:
            return {name: data[name] for name in data.files}


def hits(routing: Routing, slots: int, kind: Kind, pooled: bool = False) -> int:
    """Our hits with `slots` a layer on average."""
    ways = (slots * routing.layers,) if pooled else (slots,) * routing.layers
    rule = Rule(kind, decay=1.0) if kind is Kind.LFU else Rule(kind)
    return int(replay(routing, Cache(ways, pooled), rule).hits.sum())


def one_at_a_time(routing: Routing, order: NDArray[np.int64]) -> Routing:
    """Every expert of a token as a token of its own, in the peer's order."""
    ids = order.transpose(0, 2, 1).reshape(-1, routing.layers, 1)
    return Routing(ids, routing.experts)


def one_layer(routing: Routing, order: NDArray[np.int64]) -> Routing:
    """Every expert of every layer as a token of its own, all layers as one."""
    ids = order + np.arange(routing.layers)[None, :, None] * routing.experts
    return Routing(ids.reshape(-1, 1, 1), routing.layers * routing.experts)


def compare(routing: Routing, slots: list[int]) -> bool:
    """Print both sides; True if what has to be equal is."""
    peer = theirs(routing, slots)
    single, flat = one_at_a_time(routing, peer["order"]), one_layer(routing, peer["order"])
    rows, equal = [], True
    for at, count in enumerate(slots):
        all_slots = count * routing.layers
        pairs = {
            "lru": (hits(single, count, Kind.LRU), "lru"),
            "lru-pool": (hits(flat, all_slots, Kind.LRU, pooled=True), "lru-pool"),
            "belady": (hits(single, count, Kind.BELADY), "belady alone"),
        }
        for name, (own, other) in pairs.items():
            same = own == peer[other][at]
            equal &= bool(same)
            rows.append((count, f"{name}, one at a time", own, peer[other][at], same))
        for name, kind in (("lru", Kind.LRU), ("lfu", Kind.LFU), ("belady", Kind.BELADY)):
            own = hits(routing, count, kind)
            rows.append((count, f"{name}, each its own way", own, peer[name][at], "n/a"))
    printed = [(c, n, f"{a:,}", f"{b:,}", s) for c, n, a, b, s in rows]
    print(table(printed, ("slots", "policy", "miractl", "moe-policylang", "equal")))
    return equal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--tokens", type=int, default=3000)
    options = parser.parse_args()
    found = sorted((DATA / "traces").glob("gpt_oss*.npz"))
    if options.trace is None and not found:
        print(f"no traces in {DATA}/traces: nothing compared; --trace names one")
        return
    trace = options.trace or found[0]
    whole = routing_of(read_trace(trace))
    routing = Routing(whole.ids[: options.tokens], whole.experts)
    print(f"{trace.name}: {routing.ids.size:,} accesses, moe-policylang {VERSION}")
    sys.exit(0 if compare(routing, [slots_for(share, routing) for share in SHARES]) else 1)


if __name__ == "__main__":
    main()
