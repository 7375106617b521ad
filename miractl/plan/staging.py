"""How many experts may be staged at once: every limit with its terms, and the one that binds.

    max_staged = floor((total - baseline - headroom - KV reserve) / (expert bytes x factor))

and never more than the profile's cap. The factor is what a staged expert takes over its own size:
1 in a slot of the arena, which is cut without gaps; the rounding to powers of two in page-locked
memory; 1.8, the rule of thumb, where nothing is known of how the expert is laid out.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from miractl.units import format_bytes

RULE = Fraction(9, 5)  # the 1.8 of experience
SHARE = 4  # of the slots, one in so many may wait for a bet


@dataclass(frozen=True, slots=True)
class Bound:
    """One limit: how many experts, by what, and the arithmetic. `binds`: it may decide."""

    name: str
    experts: int
    formula: str
    binds: bool = True


@dataclass(frozen=True, slots=True)
class StagingPlan:
    """The terms in bytes, and the limits in the order they are applied."""

    total: int
    baseline: int
    headroom: int
    kv_reserve: int
    expert: int
    factor: float
    factor_from: str
    bounds: tuple[Bound, ...]

    @property
    def room(self) -> int:
        """Bytes that staged experts could have at most."""
        return max(0, self.total - self.baseline - self.headroom - self.kv_reserve)

    @property
    def binding(self) -> Bound:
        """The smallest limit; of equals the first."""
        return min((bound for bound in self.bounds if bound.binds), key=lambda b: b.experts)

    @property
    def limit(self) -> int:
        """Experts to stage at most."""
        return self.binding.experts

    def to_json(self) -> dict[str, Any]:
        """Plain data, every term in bytes."""
        names = ("total", "baseline", "headroom", "kv_reserve", "room", "factor", "factor_from")
        return {
            **{name: getattr(self, name) for name in names},
            "expert_bytes": self.expert,
            "bounds": [
                {"name": b.name, "experts": b.experts, "formula": b.formula, "decides": b.binds}
                for b in self.bounds
            ],
            "binding": self.binding.name,
            "max_staged_experts": self.limit,
        }


def plan_staging(
    *,
    total: int,
    baseline: int,
    headroom: int,
    kv_reserve: int,
    expert: int,
    cap: int,
    cap_name: str,
    factor: Fraction | None = None,
    factor_from: str = "the rule, as the packing is not known",
    pinned: tuple[int, float] | None = None,
    slots: int | None = None,
) -> StagingPlan:
    """The plan for memory that holds `baseline` bytes before any expert.

    Args:
        total: bytes of the memory that the slots are in.
        baseline: bytes taken before any expert.
        headroom: bytes left alone.
        kv_reserve: bytes for keys and values.
        expert: bytes of one.
        cap: experts, whatever the memory.
        cap_name: what caps, in words: `the cap of profile a10`.
        factor: bytes a staged expert takes, over `expert`; None for the rule.
        factor_from: why that factor.
        pinned: bytes that may be page-locked, and the factor there; None without a ring.
        slots: all slots, of which one in `SHARE` may wait; None when that is not known yet.
    """
    by = RULE if factor is None else factor
    room = max(0, total - baseline - headroom - kv_reserve)
    without, within = room // expert, int(room / (expert * by))
    bounds = [
        Bound("memory, without the factor", without, f"floor({room:,} / {expert:,})", binds=False),
        Bound(
            f"memory, with the factor {float(by):.3g}",
            within,
            f"floor({room:,} / ({expert:,} × {float(by):.4g})); {factor_from}",
        ),
    ]
    if factor is not None:
        ruled = int(room / (expert * RULE))
        text = f"floor({room:,} / ({expert:,} × 1.8)), where the packing is not known"
        bounds.append(Bound("memory, by the rule of 1.8", ruled, text, binds=False))
    if pinned is not None:
        size, rounding = pinned
        text = f"floor({size:,} / ({expert:,} × {rounding:.4g})); tensors rounded to powers of two"
        bounds.append(Bound("page-locked memory", int(size / (expert * rounding)), text))
    bounds.append(Bound(cap_name, cap, "max_staged_experts"))
    if slots is not None:
        bounds.append(Bound(f"one slot in {SHARE}", slots // SHARE, f"floor({slots:,} / {SHARE})"))
    return StagingPlan(
        total, baseline, headroom, kv_reserve, expert, float(by), factor_from, tuple(bounds)
    )


def terms(plan: StagingPlan) -> list[tuple[str, int, str]]:
    """Name, bytes and text of each term of the room, the room last."""
    return [
        ("total", plan.total, format_bytes(plan.total)),
        ("- baseline", plan.baseline, format_bytes(plan.baseline)),
        ("- headroom", plan.headroom, format_bytes(plan.headroom)),
        ("- KV reserve", plan.kv_reserve, format_bytes(plan.kv_reserve)),
        ("= room", plan.room, format_bytes(plan.room)),
    ]
