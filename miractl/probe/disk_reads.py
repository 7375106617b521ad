"""How fast records of a file come from the disk: in order and at random, with some reads at once.

Every figure is past the page cache. A round of one kind follows a round of the other, so that a
slow moment of the disk meets all of them.
"""

import itertools
import mmap
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from miractl.errors import UsageError
from miractl.probe.direct_file import PAGE, DirectFile
from miractl.units import MIB, format_bytes

ROUND = 256 * MIB  # bytes of one measurement, at most
LEAST = 4  # records of one measurement
ORDERS = ("sequential", "random")


@dataclass(frozen=True, slots=True)
class ReadRates:
    """Bytes a second of each round."""

    order: str  # one of ORDERS
    depth: int  # reads at once
    rates: tuple[float, ...]


def measure(file: DirectFile, record: int, depths: Sequence[int], repeats: int) -> list[ReadRates]:
    """Both orders with every number of reads at once.

    Raises UsageError for records that are no whole pages or a file with too few of them,
    MiractlError where the file cannot be read.
    """
    count = file.size // record
    if record % PAGE or count < LEAST:
        raise UsageError(
            f"{file.path.name} of {format_bytes(file.size)} does not hold {LEAST} records of "
            f"{record:,} bytes in whole pages of {PAGE:,}"
        )
    each = min(count, max(LEAST, ROUND // record))
    taken: dict[tuple[str, int], list[float]] = {
        key: [] for key in itertools.product(ORDERS, depths)
    }
    generator = random.Random(0)
    for _ in range(repeats):
        for (order, depth), rates in taken.items():
            if order == "random":
                numbers = generator.sample(range(count), each)
            else:
                first = generator.randrange(count - each + 1)
                numbers = list(range(first, first + each))
            rates.append(_rate(file, [n * record for n in numbers], record, depth))
    return [ReadRates(order, depth, tuple(rates)) for (order, depth), rates in taken.items()]


def _rate(file: DirectFile, starts: Sequence[int], record: int, depth: int) -> float:
    """Bytes a second of readers that take one position after the other."""
    left = iter(starts)  # next() of a list's iterator is atomic
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    buffers = [mmap.mmap(-1, record, flags=flags) for _ in range(depth)]

    def read(buffer: mmap.mmap) -> None:
        with memoryview(buffer) as view:
            for start in left:
                file.read_into([view], start)

    with ThreadPoolExecutor(depth) as readers:
        begun = time.perf_counter()
        list(readers.map(read, buffers))
        return len(starts) * record / (time.perf_counter() - begun)
