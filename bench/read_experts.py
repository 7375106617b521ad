"""Random cold reads of experts beside sequential direct reads, in one run.

    python bench/read_experts.py [FOLDER] [--record 2682880] [--rounds 41]

Makes a file of 4 GiB in FOLDER and removes it. The record is an expert of Qwen3-30B-A3B in int4: a
whole one at a place of whole pages, as packed folders have it, by one read or by several, one after
the other; or its three matrices apart and not at whole pages, as published checkpoints have them,
read past the page cache and, to compare, through it with the pages dropped behind. Turns alternate;
the rate counts the expert's bytes alone.
"""

import argparse
import itertools
import math
import mmap
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from write_benchmarks import save_table

from miractl.output import table
from miractl.probe.direct_file import PAGE, DirectFile
from miractl.probe.spread import Spread
from miractl.units import GIB, MIB, format_rate

SIZE = 4 * GIB
BLOCK = 8 * MIB
SEQUENTIAL = "sequential"
ROUND = 96 * MIB  # bytes of one measurement: short, because the rate of shared disks drifts
Read = Callable[[memoryview, int], None]  # (room for a record, its number)


def pieces(record: int, number: int) -> list[tuple[int, int]]:
    """(first byte, bytes) of three matrices that lie apart and not at whole pages."""
    third, stride = record // 3, SIZE // 3
    return [(stride * i + number * third + 1001, third) for i in range(3)]


def ways(
    file: DirectFile, cached: int, record: int, parts: Sequence[int]
) -> dict[str, tuple[int, Read]]:
    """Name: bytes of one read, and the read."""

    def whole(size: int) -> Read:
        return lambda room, number: file.read_into([room[:size]], number * size)

    def in_parts(count: int) -> Read:
        ends = [record * n // count // PAGE * PAGE for n in range(count + 1)]

        def read(room: memoryview, number: int) -> None:
            for start, end in itertools.pairwise(ends):
                file.read_into([room[start:end]], number * record + start)

        return read

    def apart(room: memoryview, number: int) -> None:
        for at, size in pieces(record, number):
            file.read_into([room[:size]], at)

    def through_cache(room: memoryview, number: int) -> None:
        for at, size in pieces(record, number):
            done = 0
            while done < size:
                done += os.preadv(cached, [room[done:size]], at + done)
            begin = at - at % PAGE
            os.posix_fadvise(cached, begin, at + size - begin + PAGE, os.POSIX_FADV_DONTNEED)

    return {
        SEQUENTIAL: (BLOCK, whole(BLOCK)),
        "packed": (record, whole(record)),
        **{f"packed, by {count} reads": (record, in_parts(count)) for count in parts},
        "unpacked": (record, apart),
        "unpacked, through the page cache": (record, through_cache),
    }


def rate(read: Read, size: int, numbers: Sequence[int], depth: int) -> tuple[float, float]:
    """Bytes a second, and processor seconds a second, of `depth` readers."""
    left = iter(numbers)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    rooms = [mmap.mmap(-1, size, flags=flags) for _ in range(depth)]

    def work(room: mmap.mmap) -> None:
        with memoryview(room) as view:
            for number in left:
                read(view, number)

    with ThreadPoolExecutor(depth) as readers:
        begun, cpu = time.perf_counter(), time.process_time()
        list(readers.map(work, rooms))
        seconds = time.perf_counter() - begun
        return len(numbers) * size / seconds, (time.process_time() - cpu) / seconds


def share(rates: Sequence[float]) -> tuple[float, float, float]:
    """The median and the ends of its 95 % interval, by the ranks of a sign test."""
    ordered, half = sorted(rates), len(rates) / 2
    width = 0.98 * math.sqrt(len(rates))
    low, high = max(0, math.floor(half - width)), min(len(rates) - 1, math.ceil(half + width) - 1)
    return median(ordered), ordered[low], ordered[high]


def turns(
    kinds: dict[str, tuple[int, Read]], depths: Sequence[int], rounds: int
) -> dict[tuple[str, int], list[tuple[float, float, float]]]:
    """Rate, processor time, and share of the sequential reads right before and right after."""
    taken: dict[tuple[str, int], list[tuple[float, float, float]]] = {
        (name, depth): [] for depth, name in itertools.product(depths, kinds)
    }

    def turn(name: str, depth: int) -> tuple[float, float]:
        size, read = kinds[name]
        room, count = SIZE // size - 2, ROUND // size
        first = random.randrange(room - count)
        numbers = random.sample(range(room), count)
        if name == SEQUENTIAL:
            numbers = list(range(first, first + count))
        return rate(read, size, numbers, depth)

    others = [name for name in kinds if name != SEQUENTIAL]
    for _, depth in itertools.product(range(rounds), depths):
        bounds = [turn(SEQUENTIAL, depth)]
        for name in random.sample(others, len(others)):
            own = turn(name, depth)
            bounds.append(turn(SEQUENTIAL, depth))
            bound = (bounds[-2][0] + bounds[-1][0]) / 2
            taken[name, depth].append((*own, own[0] / bound))
        taken[SEQUENTIAL, depth] += [(*bound, 1.0) for bound in bounds]
    return taken


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    parser.add_argument("--record", type=int, default=2_682_880)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--parts", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--out", type=Path, help="JSON for docs/benchmarks.md")
    options = parser.parse_args()
    if options.record % PAGE:
        parser.error(f"--record: {options.record} is no multiple of {PAGE}")
    with tempfile.TemporaryFile(dir=options.folder, buffering=0) as made:
        noise = os.urandom(BLOCK)
        for _ in range(SIZE // BLOCK):
            made.write(noise)
        os.fsync(made.fileno())
        file = DirectFile(Path(f"/proc/self/fd/{made.fileno()}"))
        os.posix_fadvise(made.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        kinds = ways(file, made.fileno(), options.record, options.parts)
        taken = turns(kinds, options.depths, options.rounds)
        file.close()
    rows = []
    for (name, depth), found in taken.items():
        spread = Spread.of([own for own, _, _ in found])
        figures = [format_rate(value) for value in (spread.median, spread.low, spread.high)]
        cpu = median(used for _, used, _ in found)
        middle, low, high = share([each for _, _, each in found])
        part = "" if name == SEQUENTIAL else f"{middle:.0%} ({low:.0%}-{high:.0%})"
        rows.append([name, str(depth), *figures, part, f"{cpu:.0%}"])
    headers = ("reads", "at once", "median", "lowest", "highest", "of sequential", "CPU")
    print(table(rows, headers))
    if options.out:
        note = (
            f"Records of {options.record:,} bytes, {options.rounds} rounds. Shares are of the mean "
            "of the sequential turns right before and right after, medians with their 95 % "
            "intervals; CPU is of one processor."
        )
        save_table(options.out, "Reading experts from the disk", note, headers, rows)


if __name__ == "__main__":
    main()
