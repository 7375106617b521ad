"""What the expert cache counts. Plain integers, written under the cache's lock."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from miractl.telemetry.snapshot import SWITCH_BUCKETS, SwitchFacts

RECENT = 1000  # switches behind the percentiles


@dataclass(slots=True)
class Counters:
    """Totals since the start; see telemetry.snapshot for what each one means."""

    late: int = 0
    waves: int = 0
    issued: int = 0
    used: int = 0
    wasted: int = 0
    cancelled: int = 0
    wasted_bytes: int = 0
    steps: int = 0
    tokens: int = 0
    waited: int = 0
    copied: int = 0
    on_host: int = 0


@dataclass(slots=True)
class SwitchTimes:
    """Seconds from the demand for a missing expert until it can be computed."""

    count: int = 0
    total: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(SWITCH_BUCKETS) + 1))
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, switches: Iterable[float]) -> None:
        """Record some switches; what was there before it was asked for took no time."""
        for seconds in switches:
            taken = seconds if seconds > 0 else 0.0
            self.count += 1
            self.total += taken
            self.buckets[bisect_left(SWITCH_BUCKETS, taken)] += 1
            self.recent.append(taken)

    def facts(self, expected_seconds: float | None) -> SwitchFacts:
        """The histogram and the percentiles of the recent switches."""
        ordered = sorted(self.recent)

        def percentile(share: float) -> float | None:
            return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

        return SwitchFacts(
            count=self.count,
            sum_seconds=self.total,
            buckets=tuple(self.buckets),
            p50_seconds=percentile(0.50),
            p95_seconds=percentile(0.95),
            expected_seconds=expected_seconds,
        )
