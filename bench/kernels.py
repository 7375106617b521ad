"""Speed of the CPU kernels beside other libraries, in one run.

    python bench/kernels.py [--peers SITE-PACKAGES] [--isa avx2] [--seconds 0.3]

Weights [1536, 2048] (gate and up of an expert of Qwen3-30B-A3B), one thread, from copies that do
not fit the caches of most processors. Prints the best and, in brackets, the median in billions of
multiply-adds a second. Pin it to one core (`taskset -c 0`); figures of different runs do not
compare. Peers that are not installed are named and left out; --peers adds the site-packages of
another environment of the same Python (onnxruntime and onnx, ik_llama_cpp_python).
"""

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
import peers

from miractl.native import (
    I4K,
    I8,
    Format,
    Matrix,
    MatrixShape,
    Span,
    aligned_empty,
    dequantize,
    library,
    quantize,
)

ROWS, COLUMNS, COPIES = 1536, 2048, 48
TOKENS = (1, 4, 16, 64, 256)
FORMATS = {"I4K": I4K, "I8 group 32": Format("i8", 32), "I8 group 128": I8}


def own_products(weights: peers.Floats, x: dict[int, peers.Floats]) -> peers.Products:
    """Our kernels; also prints how fast weights become blocks and back."""
    made: peers.Products = {}
    y = Span.of(np.empty((max(TOKENS), ROWS), np.float32))
    inputs = {tokens: Span.of(array) for tokens, array in x.items()}
    for name, format_ in FORMATS.items():
        shape = MatrixShape(format_, ROWS, COLUMNS)
        block = quantize(weights, shape)
        there = min(seconds(lambda: quantize(weights, shape)) for _ in range(3))  # noqa: B023
        back = min(seconds(lambda: dequantize(block, shape)) for _ in range(3))  # noqa: B023
        bits = 8 * shape.nbytes / weights.size
        print(
            f"{name}: {bits:.2f} bits a weight, quantised at {weights.size / there / 1e6:.0f} and "
            f"dequantised at {weights.size / back / 1e6:.0f} million weights/s"
        )
        matrices = []
        for _ in range(COPIES):
            copy = aligned_empty(shape.nbytes)
            copy[:] = block
            matrices.append(Matrix(copy, shape))
        made[f"miractl {name}"] = lambda i, m, of=matrices: of[i].multiply_into(inputs[m], m, y)
    return made


def seconds(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def all_products(weights: peers.Floats, x: dict[int, peers.Floats]) -> peers.Products:
    """Ours and those of the peers that are here."""
    products = own_products(weights, x)
    for make in (peers.torch_products, peers.onnxruntime_products, peers.ik_products):
        try:
            products |= make(weights, x, COPIES)
        except (ImportError, OSError) as error:
            print(f"left out: {make.__name__.removesuffix('_products')} ({error})")
    return products


def measure(products: peers.Products, limit: float) -> dict[tuple[str, int], list[float]]:
    """Seconds of calls, in rounds over all products, so that a slow minute meets all of them."""
    taken: dict[tuple[str, int], list[float]] = {}
    for _ in range(4):
        for tokens in TOKENS:
            for name, product in products.items():
                calls, start = taken.setdefault((name, tokens), []), time.perf_counter()
                while time.perf_counter() - start < limit / 4:
                    calls.append(seconds(lambda: product(len(calls) % COPIES, tokens)))  # noqa: B023
    return taken


def print_table(products: peers.Products, taken: dict[tuple[str, int], list[float]]) -> None:
    """Best (median) Gmac/s of each product and number of tokens."""
    print(f"\n{'Gmac/s best (median)':22}" + "".join(f"{f'{m} tokens':>16}" for m in TOKENS))
    for name in products:
        cells = []
        for tokens in TOKENS:
            work = ROWS * COLUMNS * tokens / 1e9
            calls = taken[name, tokens]
            cells.append(f"{work / min(calls):.1f} ({work / float(np.median(calls)):.1f})")
        print(f"{name:22}" + "".join(f"{cell:>16}" for cell in cells))


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help="site-packages of an environment with the other libraries")
    parser.add_argument("--isa", help="instruction set: scalar, avx2, vnni or neon")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure (0.3)")
    options = parser.parse_args()
    if options.peers:
        sys.path.append(options.peers)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((ROWS, COLUMNS), np.float32) * np.float32(0.02)
    x = {tokens: rng.standard_normal((tokens, COLUMNS), np.float32) for tokens in TOKENS}
    with library.using_isa(options.isa or library.isa()):
        print(f"instruction set {library.isa()}; {', '.join(library.supported_isas())} are here")
        products = all_products(weights, x)
        print_table(products, measure(products, options.seconds))


if __name__ == "__main__":
    main()
