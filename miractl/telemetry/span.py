"""What happened between two snapshots, or since the start of the server: counter differences.

Every ratio is `None` while its denominator is 0, since nothing is known then. Time comes from the
server's uptime and never from a wall clock, which can jump.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from miractl.telemetry.snapshot import SWITCH_BUCKETS, LayerFacts, Snapshot


def ratio(part: float, whole: float) -> float | None:
    """`part / whole`, or None when the whole is 0 or less."""
    return part / whole if whole > 0 else None


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Estimated quantile in seconds of a switch-latency histogram, linear within a bucket.

    Args:
        counts: Not cumulative, one per SWITCH_BUCKETS and one more for the rest.
        share: In [0, 1]; 0.95 for P95.

    Returns:
        None for an empty histogram; the last finite bound when the quantile lies beyond it.
    """
    rank = share * sum(counts)
    below = 0
    for index, count in enumerate(counts[: len(SWITCH_BUCKETS)]):
        if count and below + count >= rank:
            low = SWITCH_BUCKETS[index - 1] if index else 0.0
            return low + (SWITCH_BUCKETS[index] - low) * (rank - below) / count
        below += count
    return SWITCH_BUCKETS[-1] if sum(counts) else None


def restarted(old: Snapshot, new: Snapshot) -> bool:
    """True when `new` cannot follow `old`: another start of the server, or another model."""
    return (
        new.uptime_seconds < old.uptime_seconds
        or new.cache.lookups < old.cache.lookups
        or new.work.steps < old.work.steps
        or new.model != old.model
    )


@dataclass(frozen=True, slots=True)
class Span:
    """Counter differences over `seconds`; the names are those of the snapshot's counters."""

    seconds: float
    steps: int
    tokens: int
    lookups: int
    hits: int
    misses: int
    late: int
    bypassed: int
    evictions: int
    waves: int
    bytes: int
    busy_seconds: float
    issued: int
    used: int
    bets_late: int
    wasted: int
    cancelled: int
    wasted_bytes: int
    alloc_retries: int
    ooms: int
    switches: tuple[int, ...]  # counts per SWITCH_BUCKETS and one more
    layers: tuple[LayerFacts, ...]

    @classmethod
    def between(cls, old: Snapshot | None, new: Snapshot) -> Self:
        """From `old` to `new`; from the start of the server when `old` is None.

        Raises ValueError when the server restarted in between, since no difference makes sense.
        """
        if old is not None and restarted(old, new):
            raise ValueError("the counters of these snapshots are not of one run of the server")

        def moved(read: Callable[[Snapshot], int]) -> int:
            return read(new) - (read(old) if old else 0)

        old_buckets = old.switch.buckets if old else (0,) * len(new.switch.buckets)
        old_layers = {row.layer: row for row in old.layers} if old else {}
        return cls(
            seconds=new.uptime_seconds - (old.uptime_seconds if old else 0.0),
            steps=moved(lambda s: s.work.steps),
            tokens=moved(lambda s: s.work.tokens),
            lookups=moved(lambda s: s.cache.lookups),
            hits=moved(lambda s: s.cache.hits),
            misses=moved(lambda s: s.cache.misses),
            late=moved(lambda s: s.cache.late),
            bypassed=moved(lambda s: s.cache.bypassed),
            evictions=moved(lambda s: s.cache.evictions),
            waves=moved(lambda s: s.cache.waves),
            bytes=moved(lambda s: s.transfer.bytes),
            busy_seconds=new.transfer.busy_seconds - (old.transfer.busy_seconds if old else 0.0),
            issued=moved(lambda s: s.prefetch.issued),
            used=moved(lambda s: s.prefetch.used),
            bets_late=moved(lambda s: s.prefetch.late),
            wasted=moved(lambda s: s.prefetch.wasted),
            cancelled=moved(lambda s: s.prefetch.cancelled),
            wasted_bytes=moved(lambda s: s.prefetch.wasted_bytes),
            alloc_retries=moved(lambda s: s.memory.alloc_retries or 0),
            ooms=moved(lambda s: s.memory.ooms or 0),
            switches=tuple(a - b for a, b in zip(new.switch.buckets, old_buckets, strict=True)),
            layers=tuple(_layer_moved(row, old_layers.get(row.layer)) for row in new.layers),
        )

    @property
    def hit_rate(self) -> float | None:
        """Share of lookups that found their expert in a slot."""
        return ratio(self.hits, self.lookups)

    @property
    def newcomers(self) -> int:
        """Experts that had to find a place: misses, and bets that came in time and were used."""
        return self.misses + self.used

    @property
    def bypassed_share(self) -> float | None:
        """Share of the newcomers that displaced nobody and were gone after the step."""
        return ratio(self.bypassed, self.newcomers)

    @property
    def utilization(self) -> float | None:
        """Share of the time in which a transfer was under way."""
        busy = ratio(self.busy_seconds, self.seconds)
        # The two clocks of a snapshot are read a moment apart, which can lift this above 1.
        return None if busy is None else min(busy, 1.0)

    @property
    def rate(self) -> float | None:
        """Bytes per second over the whole span, idle time included."""
        return ratio(self.bytes, self.seconds)

    @property
    def busy_rate(self) -> float | None:
        """Bytes per second while a transfer was under way: what the source really gives."""
        return ratio(self.bytes, self.busy_seconds)

    @property
    def wasted_share(self) -> float | None:
        """Share of the transferred bytes that were wrong bets."""
        return ratio(self.wasted_bytes, self.bytes)

    @property
    def bets_settled(self) -> int:
        """Bets whose outcome is known and that moved bytes."""
        return self.used + self.bets_late + self.wasted

    def per_second(self, count: float) -> float | None:
        """`count` over the span's seconds."""
        return ratio(count, self.seconds)

    def switch_quantile(self, share: float) -> float | None:
        """Estimated quantile of the switch latency in seconds, None without switches."""
        return quantile(self.switches, share)


def _layer_moved(new: LayerFacts, old: LayerFacts | None) -> LayerFacts:
    if old is None:
        return new
    return LayerFacts(new.layer, new.lookups - old.lookups, new.hits - old.hits)
