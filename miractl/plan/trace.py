"""Hit rates from a recorded routing trace: LRU, and Belady's optimum, in sets as they will be.

Replays are plain Python, so only the beginning of a long trace is used.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from miractl.checkpoint.geometry import Geometry
from miractl.errors import UsageError
from miractl.plan.cache import HitRange
from miractl.telemetry import trace as trace_file
from miractl.telemetry.trace import Ids, Trace

MOST_LOOKUPS = 400_000  # a few seconds
NEVER = 1 << 62

Step = tuple[int, tuple[int, ...]]  # number, keys of the experts that one layer needs at once


def read_trace(path: Path, geometry: Geometry) -> Trace:
    """The beginning of a trace of this model. Raises UsageError for any other file."""
    trace = trace_file.read_trace(path)
    ids = trace.ids
    wanted = (len(geometry.moe_layers), geometry.top_k)
    if ids.shape[1:] != wanted:
        raise UsageError(
            f"trace {path}: topk_ids is {list(ids.shape)}, expected"
            f" [tokens, {wanted[0]}, {wanted[1]}] as this model routes"
        )
    if int(ids.max()) >= geometry.experts:
        raise UsageError(f"trace {path}: expert {int(ids.max())} of {geometry.experts}")
    tokens = max(1, MOST_LOOKUPS // (wanted[0] * wanted[1]))
    return Trace(trace.name, ids[:tokens])


def replayed_hits(trace: Trace, ways: Sequence[int]) -> HitRange:
    """LRU and optimum over one cache for each set; layer l belongs to set l mod N. Starts cold."""
    lookups = trace.ids.size
    rates = [
        sum(policy(_steps(trace.ids, s, len(ways)), ways[s]) for s in range(len(ways))) / lookups
        for policy in (lru_hits, belady_hits)
    ]
    origin = f"replay of {len(trace.ids):,} tokens of {trace.name}, LRU to optimum"
    return HitRange(min(rates), max(rates), origin, is_assumed=False)


def lru_hits(steps: list[Step], ways: int) -> int:
    """Lookups answered by a cache that evicts what was used longest ago."""
    return _replay(steps, ways, lambda key, step: step)


def belady_hits(steps: list[Step], ways: int) -> int:
    """Lookups answered by a cache that evicts what is needed latest, or never again."""
    upcoming: dict[tuple[int, int], int] = {}
    latest: dict[int, int] = {}
    for number, keys in reversed(steps):
        for key in keys:
            upcoming[number, key] = latest.get(key, NEVER)
            latest[key] = number
    return _replay(steps, ways, lambda key, step: -upcoming[step, key])


def _steps(ids: Ids, own: int, sets: int) -> list[Step]:
    """What one set is asked for, in order of time."""

    def generate() -> Iterator[tuple[int, ...]]:
        for token in ids[:, own::sets].tolist():
            for place, experts in enumerate(token):
                yield tuple(dict.fromkeys(place << 32 | expert for expert in experts))

    return list(enumerate(generate()))


def _replay(steps: list[Step], ways: int, worth: Callable[[int, int], int]) -> int:
    """Hits when the resident of least worth goes first; whoever the step needs stays."""
    value: dict[int, int] = {}  # residents
    heap: list[tuple[int, int]] = []  # (worth, key), outdated entries included
    hits = 0
    for number, keys in steps:
        hits += sum(key in value for key in keys)
        absent = [key for key in keys if key not in value]
        for key in keys:
            if key in value:
                value[key] = worth(key, number)
        needed = set(keys)
        for key in absent:
            if len(value) >= ways and not _evict(value, heap, needed):
                break  # all residents are needed: computed in passing
            value[key] = worth(key, number)
        for key in keys:
            if key in value:
                heapq.heappush(heap, (value[key], key))
    return hits


def _evict(value: dict[int, int], heap: list[tuple[int, int]], needed: set[int]) -> bool:
    """Drop the resident of least worth that the step can do without; False if there is none."""
    while heap:
        worth, key = heapq.heappop(heap)
        if value.get(key) == worth and key not in needed:
            del value[key]
            return True
    return False
