"""miractl beside other engines: the same random weights, one run, turn by turn.

    python bench/against.py DATA [--layers 2] [--rounds 5] [--limit 40%] [--out FILE.json]

Needs pip, npm and node, and for --limit root and a memory controller. Makes in DATA, and keeps
there for the next run, environments of the peers, a checkpoint of bench/make_checkpoint.py, and
from it our packs and GGUF files.

In each round every contender has a turn: a process of its own on the processors of --cpus loads the
model, runs uncounted until it reads nothing more from the disk, and then once counted. With --limit
its files are dropped from memory before, it runs in a control group with that share of the model's
bytes, and nothing goes uncounted; direct sequential reads of the same files, before and after the
run, say what the disk does then.
bench/write_benchmarks.py makes docs/benchmarks.md of the results in bench/results.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from cgroup_plan import Group
from read_experts import BLOCK, rate
from workshop import NODE, WHEELS, Contender, Workshop, contenders

from miractl.probe.direct_file import DirectFile
from miractl.units import MIB, parse_share

SPAN = 256 * MIB  # of a sequential read
WARM_UP = 6  # uncounted runs at most: random prompts find experts that none before them wanted
SLOW = 150.0  # seconds of a turn, from which on two turns are enough, as two failures are


@dataclass(slots=True)
class Found:
    """What the turns of one contender gave."""

    laps: dict[str, list[dict[str, float]]] = field(
        default_factory=lambda: {"prefill": [], "decode": []}
    )
    sequential: list[float] = field(default_factory=list)  # bytes a second, around counted runs
    planned_bytes: list[int] = field(default_factory=list)  # for the process, by itself
    peak_bytes: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@contextlib.contextmanager
def child(contender: Contender, options: argparse.Namespace, group: Group | None) -> Iterator[Any]:
    """Its process, killed in the end."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    process = subprocess.Popen(
        ("taskset", "-c", options.cpus, *contender.command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if options.verbose else subprocess.DEVNULL,
        env=environment,
        preexec_fn=group.enter if group else None,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answer(process: Any, until: float) -> dict[str, Any]:
    """The next line of JSON. Raises TimeoutError, or EOFError when the process has ended."""
    ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
    if not ready:
        raise TimeoutError("no answer in time")
    line = process.stdout.readline()
    if not line:
        raise EOFError(f"ended with {process.wait()}")
    facts: dict[str, Any] = json.loads(line)
    return facts


def ask(process: Any, prompt: list[int], tokens: int, until: float) -> dict[str, Any]:
    """One run of a contender."""
    process.stdin.write(json.dumps({"prompt": prompt, "tokens": tokens}).encode() + b"\n")
    process.stdin.flush()
    return answer(process, until)


def prompt(options: argparse.Namespace) -> list[int]:
    """Random tokens."""
    return [random.randrange(1, 32768) for _ in range(options.prompt)]


def warm_up(process: Any, options: argparse.Namespace, until: float) -> None:
    """Run until everything is in memory that has to be."""
    for _ in range(WARM_UP):
        laps = ask(process, prompt(options), options.tokens, until)
        if not any(lap["read_bytes"] for lap in laps.values()):
            return


def sequential(path: Path) -> float:
    """Bytes a second of direct reads, one after the other, somewhere in a file."""
    blocks = path.stat().st_size // BLOCK
    first = random.randrange(max(1, blocks - SPAN // BLOCK))
    file = DirectFile(path)
    try:
        numbers = range(first, min(blocks, first + SPAN // BLOCK))
        return rate(lambda room, n: file.read_into([room], n * BLOCK), BLOCK, numbers, 2)[0]
    finally:
        file.close()


def forget(files: Path) -> None:
    """Drop files from the page cache."""
    for path in [files] if files.is_file() else files.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def turn(contender: Contender, options: argparse.Namespace, to: Found) -> None:
    """One counted run."""
    until = time.monotonic() + options.patience
    group = Group(contender.limit) if contender.limit else None
    if group:
        forget(contender.files)
    try:
        with child(contender, options, group) as process:
            planned = answer(process, until).get("planned_bytes")
            if not group:
                warm_up(process, options, until)
            before = sequential(contender.largest) if group else None
            for name, lap in ask(process, prompt(options), options.tokens, until).items():
                to.laps[name].append(lap)
            if before:
                to.sequential.append((before + sequential(contender.largest)) / 2)
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
            to.peak_bytes.append(int(peak[1]) * 1024 if peak else 0)
            to.planned_bytes += [planned] if planned else []
    except TimeoutError:
        to.errors.append(f"not done after {options.patience:.0f} s")
    except (EOFError, BrokenPipeError) as error:
        killed = ", killed for memory" if group and group.kills else ""
        to.errors.append(f"{error}{killed}")
    finally:
        if group:
            group.close()


def pace(found: Found, part: str, clock: str) -> float | None:
    """The median of tokens a second; None if no turn went well."""
    laps = found.laps[part]
    return median(lap["tokens"] / lap[clock] for lap in laps) if laps else None


def show(results: Mapping[str, tuple[Contender, Found]]) -> None:
    """A table of medians."""
    print(f"{'':32}{'prefill/s':>11}{'a CPU s':>9}{'decode/s':>10}{'a CPU s':>9}")
    for name, (_, found) in results.items():
        cells = [pace(found, p, c) for p in found.laps for c in ("seconds", "cpu_seconds")]
        text = ["n/a" if cell is None else f"{cell:.3g}" for cell in cells]
        print(f"{name:32}{text[0]:>11}{text[1]:>9}{text[2]:>10}{text[3]:>9}", *found.errors[:1])


def machine() -> dict[str, object]:
    """What it ran on."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "processor": cpu[1] if cpu else platform.machine(),
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "llama.cpp": NODE,
        "ik_llama": WHEELS[1][-1],
    }


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpus", default="0", help="processors, as taskset has them (0)")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--limit", type=parse_share, help="memory, as a share of the Q4_K file")
    parser.add_argument("--patience", type=float, default=600, help="seconds of one turn (600)")
    parser.add_argument("--only", default="", help="a pattern of names")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--verbose", action="store_true", help="show what contenders say")
    options = parser.parse_args()
    shop = Workshop(options.data, options.layers, options.experts)
    shop.environments()
    limit = options.limit and int(options.limit * shop.gguf("Q4_K").stat().st_size)
    wanted = re.compile(options.only).search
    results = {
        f"{each.name} {each.weights}": (each, Found())
        for each in contenders(shop, wanted, limit, options.threads)
    }
    slowest = dict.fromkeys(results, 0.0)
    for number in range(options.rounds):
        for name, (contender, found) in results.items():
            print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
            if len(found.errors) < 2 and not (number > 1 and slowest[name] > SLOW):
                begun = time.monotonic()
                turn(contender, options, found)
                slowest[name] = max(slowest[name], time.monotonic() - begun)
    show(results)
    if options.out:
        shape = {"layers": options.layers, "experts": options.experts, "limit_bytes": limit}
        run = {name: vars(options)[name] for name in ("rounds", "threads", "prompt", "tokens")}
        rows = [
            {"name": each.name, "weights": each.weights, "limit_bytes": each.limit, **asdict(found)}
            for each, found in results.values()
        ]
        facts = {"schema": "miractl.against/1", "machine": machine(), **shape, **run}
        options.out.write_text(json.dumps({**facts, "contenders": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
