"""Experts of a model on one token, with one thread and more, beside plain reads of the same memory.

    python bench/experts.py [--layers 8] [--threads 1 2] [--rounds 7]

The shapes of Qwen3-30B-A3B: 32 of its 128 experts a layer, eight of them a token, random routes.
Memory is the limit of such products, so each figure stands beside what as many threads reach that
only look at the same bytes. Rounds alternate over everything that is compared; figures of
different runs do not compare. Ratios are those of the best rounds, in brackets of the medians.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from write_benchmarks import save_table

from miractl.native import (
    I4K,
    I8,
    ExpertShape,
    Format,
    Layer,
    Pool,
    Span,
    aligned_empty,
    library,
)
from miractl.native.matrix import quantize_into
from miractl.output import table

HIDDEN, INNER, EXPERTS, TOP = 2048, 768, 32, 8
ROUTES = 40
STEPS = 12  # tokens of one round
HEADERS = (
    *("format", "threads", "tokens/s", "GB/s", "plain read, GB/s", "share of it"),
    *("times one thread", "plain read, times one thread"),
)
Rates = dict[tuple[str, int], float]  # (what, threads): bytes a second
Taken = dict[tuple[str, int], list[float]]


class Model:
    """The experts of some layers, one record after the other, and routes through them."""

    def __init__(self, format_: Format, layers: int) -> None:
        shape, rng = ExpertShape(format_, HIDDEN, INNER), np.random.default_rng(0)
        self.record = shape.record_bytes
        self.arena = aligned_empty(layers * EXPERTS * self.record, 4096)
        for matrix, at in ((shape.gate_up, 0), (shape.down, shape.gate_up.nbytes)):
            weights = rng.standard_normal((matrix.rows, matrix.columns), np.float32)
            quantize_into(weights / np.float32(50), matrix, Span.of(self.arena[at : self.record]))
        places = self.arena.reshape(layers, EXPERTS, self.record)
        places.reshape(-1, self.record)[1:] = places[0, 0]
        self.layers = [Layer(shape, EXPERTS) for _ in range(layers)]
        for layer, blocks in zip(self.layers, places, strict=True):
            for expert, block in enumerate(blocks):
                layer.put(expert, block)
        self.x = Span.of(rng.standard_normal((1, HIDDEN), np.float32))
        self.weights = Span.of(np.full((1, TOP), 1 / TOP, np.float32))
        self.parts = Span.of(np.empty((1, TOP, HIDDEN), np.float32))
        self.y = Span.of(np.empty((1, HIDDEN), np.float32))
        routes = (rng.permutation(EXPERTS)[:TOP].astype(np.int32) for _ in range(ROUTES))
        self.routes = [Span.of(route) for route in routes]
        self.token_bytes = layers * TOP * self.record

    def decode(self, pool: Pool) -> float:
        """Bytes a second of the best of some tokens."""

        def token(step: int) -> float:
            start = time.perf_counter()
            for number, layer in enumerate(self.layers):
                route = self.routes[(step + number) % ROUTES]
                layer.run_into(self.x, 1, route, TOP, self.weights, self.parts, self.y, pool)
            return time.perf_counter() - start

        return self.token_bytes / min(token(step) for step in range(STEPS))

    def read(self, threads: ThreadPoolExecutor, count: int) -> float:
        """Bytes a second of threads that take the largest number of all memory."""
        parts = np.array_split(self.arena.view(np.uint64), count)
        start = time.perf_counter()
        list(threads.map(np.max, parts))
        return self.arena.nbytes / (time.perf_counter() - start)


def measure(model: Model, threads: list[int], rounds: int) -> Taken:
    """Bytes a second of decode and of plain reads, by number of threads."""
    with ThreadPoolExecutor(max(threads)) as readers:
        runs: dict[tuple[str, int], Callable[[], float]] = {}
        for count in threads:
            pool = Pool(count)
            runs["read", count] = lambda n=count: model.read(readers, n)  # type: ignore[misc]
            runs["decode", count] = lambda p=pool: model.decode(p)  # type: ignore[misc]
        taken: Taken = {what: [] for what in runs}
        for _ in range(rounds):
            for what, run in runs.items():
                taken[what].append(run())
    return taken


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="JSON for docs/benchmarks.md")
    options = parser.parse_args()
    rows = []
    for format_ in (I4K, I8):
        model = Model(format_, options.layers)
        taken = measure(model, options.threads, options.rounds)
        rows += lines(format_.name, model, taken, options.threads)
    print(table(rows, HEADERS))
    if options.out:
        note = (
            f"{options.layers} layers, top 8, {library.isa()}; best (median) of {options.rounds} "
            "rounds in turns. The plain read only looks at the same memory."
        )
        save_table(options.out, "Experts of one token, by threads", note, HEADERS, rows)


def lines(name: str, model: Model, taken: Taken, threads: list[int]) -> list[list[str]]:
    """A row for each number of threads."""
    best = {what: max(rates) for what, rates in taken.items()}
    middle = {what: float(np.median(rates)) for what, rates in taken.items()}
    one, rows = threads[0], []
    for count in threads:

        def both(of: Callable[[Rates], float], spec: str) -> str:
            return f"{of(best):{spec}} ({of(middle):{spec}})"

        decode, read = ("decode", count), ("read", count)
        rows.append(
            [
                *(name, str(count)),
                both(lambda t: t[decode] / model.token_bytes, ".1f"),  # noqa: B023
                both(lambda t: t[decode] / 1e9, ".1f"),  # noqa: B023
                both(lambda t: t[read] / 1e9, ".1f"),  # noqa: B023
                both(lambda t: t[decode] / t[read], ".0%"),  # noqa: B023
                both(lambda t: t[decode] / t["decode", one], ".2f"),  # noqa: B023
                both(lambda t: t[read] / t["read", one], ".2f"),  # noqa: B023
            ]
        )
    return rows


if __name__ == "__main__":
    main()
