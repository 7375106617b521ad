"""What the slots are worth: sets and ways, the token cycle, the hit rate to expect."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from miractl.checkpoint.geometry import Geometry

FINE = 32  # experts a layer from which routing was seen to be local enough for the figures below
# Share of the experts resident: hit rate of LRU in each layer at worst, of the optimum at best.
# Replays of recorded routing of gpt-oss-20b and DeepSeek-V2-Lite, cold start included.
SEEN = (
    (0.0, 0.0, 0.0),
    (0.125, 0.33, 0.45),
    (0.25, 0.50, 0.78),
    (0.5, 0.74, 0.95),
    (1.0, 1.0, 1.0),
)


@dataclass(frozen=True, slots=True)
class HitRange:
    """Shares of lookups that hit, from pessimistic to the optimum, and where that is known from."""

    low: float
    high: float
    origin: str
    is_assumed: bool

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "low": self.low,
            "high": self.high,
            "origin": self.origin,
            "assumed": self.is_assumed,
        }


def token_cycle(geometry: Geometry) -> int:
    """T = MoE layers x top-k: experts that one token asks for. One LRU below T slots never hits."""
    return len(geometry.moe_layers) * geometry.top_k


def ways_for(cores: int) -> int:
    """Ways of a set for so many cores: 4 on few, 5 on 8, 8 on 24 and more.

    Many cores compute misses quickly, so that long sets, which hit more but conflict, pay off.
    """
    if cores <= 8:
        return 4 + max(0, cores - 4) // 4
    return 5 + min(16, cores - 8) * 3 // 16


def divide(slots: int, cores: int) -> tuple[int, int]:
    """N sets x M ways: M by the cores, N = floor(S / M)."""
    ways = min(ways_for(cores), max(1, slots))
    return slots // ways, ways


def expected_hits(geometry: Geometry, residents: int, sets: int) -> HitRange:
    """The range for `residents` slots over `sets` sets, from what was seen elsewhere."""
    if residents >= geometry.expert_count:
        return HitRange(1.0, 1.0, "every expert is resident", is_assumed=False)
    share = residents / geometry.expert_count
    low, high = _seen(share)
    origin = "assumed: LRU to optimum on routing recorded from gpt-oss-20b and DeepSeek-V2-Lite"
    if geometry.experts < FINE:
        low = min(low, share)
        origin += f"; from no locality at all, as {geometry.experts} experts a layer are few"
    per_layer = residents / max(1, min(sets, len(geometry.moe_layers)))
    if sets < len(geometry.moe_layers) or per_layer < geometry.top_k:
        low, origin = 0.0, origin.partition(";")[0]
        origin += f"; from 0, as LRU with fewer ways than top {geometry.top_k} evicts all it needs"
    return HitRange(low, high, origin, is_assumed=True)


def _seen(share: float) -> tuple[float, float]:
    """Both rates at a share of residents, straight between the points of SEEN."""
    right = max(1, bisect_left([point[0] for point in SEEN], share))
    (x0, *at), (x1, *to) = SEEN[right - 1], SEEN[right]
    part = (share - x0) / (x1 - x0)
    low, high = (a + part * (b - a) for a, b in zip(at, to, strict=True))
    return low, high
