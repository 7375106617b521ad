"""How fast this process reads its memory: the bound of every kernel that runs over weights."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

REPEATS = 3
PIECE = 2**21  # bytes of one reduction: a thread's turn, and room for what it makes


def probe(arrays: Sequence[npt.NDArray[np.uint8]], threads: int) -> float | None:
    """Bytes a second that `threads` threads read together of what is there; None without data.

    The best of a few passes over flat arrays that are in memory already: weights that fit the
    processor's caches are read from those, as they are by the kernels.
    """
    pieces = [a[at : at + PIECE] for a in arrays for at in range(0, a.nbytes // 8 * 8, PIECE)]
    words = [piece[: piece.nbytes // 8 * 8].view(np.int64) for piece in pieces]
    size = sum(piece.nbytes for piece in words)
    if not size:
        return None
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(REPEATS):
            start = time.perf_counter()
            # numpy lets go of the interpreter lock while it reduces.
            list(pool.map(np.max, words))
            best = max(best, size / (time.perf_counter() - start))
    return best
