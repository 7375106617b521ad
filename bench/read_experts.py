"""Random cold reads of experts beside sequential direct reads, in one run.

    python bench/read_experts.py [FOLDER] [--record 2682880] [--rounds 41]

Makes a file of 4 GiB in FOLDER and removes it. The record is an expert of Qwen3-30B-A3B in int4: a
whole one at a place of whole pages, as packed folders have it; or its three matrices apart and not
at whole pages, as published checkpoints have them, read past the page cache and, to compare,
through it with the pages dropped behind. Turns alternate; the rate counts the expert's bytes alone.
"""

import argparse
import itertools
import mmap
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from write_benchmarks import save_table

from miractl.output import table
from miractl.probe.direct_file import PAGE, DirectFile
from miractl.probe.spread import Spread
from miractl.units import GIB, MIB, format_rate

SIZE = 4 * GIB
BLOCK = 8 * MIB
ROUND = 96 * MIB  # bytes of one measurement: short, because the rate of shared disks drifts
Read = Callable[[memoryview, int], None]  # (room for a record, its number)


def pieces(record: int, number: int) -> list[tuple[int, int]]:
    """(first byte, bytes) of three matrices that lie apart and not at whole pages."""
    third, stride = record // 3, SIZE // 3
    return [(stride * i + number * third + 1001, third) for i in range(3)]


def ways(file: DirectFile, cached: int, record: int) -> dict[str, tuple[int, Read]]:
    """Name: bytes of one read, and the read."""

    def whole(size: int) -> Read:
        return lambda room, number: file.read_into([room[:size]], number * size)

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
        "sequential": (BLOCK, whole(BLOCK)),
        "packed": (record, whole(record)),
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


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path())
    parser.add_argument("--record", type=int, default=2_682_880)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 4])
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
        kinds = ways(file, made.fileno(), options.record)
        taken: dict[tuple[str, int], list[tuple[float, float]]] = {
            (name, depth): [] for depth, name in itertools.product(options.depths, kinds)
        }
        for _ in range(options.rounds):
            for (name, depth), rates in taken.items():
                size, read = kinds[name]
                room, count = SIZE // size - 2, ROUND // size
                first = random.randrange(room - count)
                numbers = random.sample(range(room), count)
                if name == "sequential":
                    numbers = list(range(first, first + count))
                rates.append(rate(read, size, numbers, depth))
        file.close()
    rows = []
    for (name, depth), rates in taken.items():
        spread = Spread.of([r for r, _ in rates])
        figures = [format_rate(value) for value in (spread.median, spread.low, spread.high)]
        cpu = Spread.of([c for _, c in rates]).median
        pairs = zip(rates, taken["sequential", depth], strict=True)
        share = Spread.of([own / bound for (own, _), (bound, _) in pairs]).median
        rows.append([name, str(depth), *figures, f"{share:.0%}", f"{cpu:.0%}"])
    headers = ("reads", "at once", "median", "lowest", "highest", "of sequential", "CPU")
    print(table(rows, headers))
    if options.out:
        note = (
            f"Records of {options.record:,} bytes, {options.rounds} rounds in turns. Shares are "
            "medians of each turn over the sequential one of the same round; CPU is of one "
            "processor."
        )
        save_table(options.out, "Reading experts from the disk", note, headers, rows)


if __name__ == "__main__":
    main()
