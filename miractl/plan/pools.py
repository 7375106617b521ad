"""Slots where layers have experts of several shapes: a pool for each, from one budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from miractl.errors import UsageError
from miractl.plan.slots import SlotPlan, plan_slots, whole
from miractl.units import counted, format_bytes


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The pools' plans, and which pool each MoE layer has its slots in. Most models have one."""

    pools: tuple[SlotPlan, ...]
    of_layer: tuple[int, ...]

    @property
    def budget(self) -> int:
        """Bytes for all pools."""
        return sum(pool.budget for pool in self.pools)

    @property
    def slots(self) -> int:
        """Slots of all pools."""
        return sum(pool.slots for pool in self.pools)

    @property
    def ways(self) -> tuple[int, ...]:
        """Residents of each set, pool by pool."""
        return tuple(ways for pool in self.pools for ways in pool.ways)

    @property
    def staging_limit(self) -> int:
        """Experts that may wait on bets, in all pools."""
        return sum(pool.staging_limit for pool in self.pools)

    @property
    def expert_bytes(self) -> int:
        """Of one expert; the mean where they differ."""
        return round(sum(map(self.bytes_in, self.of_layer)) / len(self.of_layer))

    @property
    def arena_bytes(self) -> int:
        """What the slots take; at most `budget`."""
        return sum(pool.arena_bytes for pool in self.pools)

    def bytes_in(self, pool: int) -> int:
        """Of one expert of a pool."""
        return self.pools[pool].expert_bytes

    def layers(self, pool: int) -> tuple[int, ...]:
        """Numbers of the pool's layers, of those with experts."""
        return tuple(at for at, own in enumerate(self.of_layer) if own == pool)


def plan_pools(
    budget: int,
    expert_bytes: Sequence[int],
    of_layer: Sequence[int],
    experts: int,
    top_k: int,
    max_staged: int,
    sets: int | None = None,
) -> PoolPlan:
    """Slots for a budget: each pool gets as much of it as its experts are of all bytes.

    At least one token's worth each; what a large expert leaves over goes to the next pool. At most
    `max_staged` bets wait in all of them together.

    Args:
        budget: bytes.
        expert_bytes: of one expert of each pool.
        of_layer: the pool of each MoE layer.
        experts: of a layer.
        top_k: experts of a token.
        max_staged: bets that wait, at most.
        sets: as for `plan_slots`; only where there is one pool.

    Raises UsageError for a budget that is too small and for sets over several pools.
    """
    sizes = range(len(expert_bytes))
    counts = [sum(own == pool for own in of_layer) for pool in sizes]
    if len(expert_bytes) == 1:
        plan = plan_slots(budget, expert_bytes[0], counts[0], experts, top_k, max_staged, sets)
        return PoolPlan((plan,), tuple(of_layer))
    if sets is not None:
        raise UsageError(f"--sets is for experts of one shape, the model has {len(sizes)}")
    need = [top_k * size for size in expert_bytes]
    if sum(need) > budget:
        raise UsageError(
            f"expert memory {format_bytes(budget)} is too little for {len(sizes)} shapes of"
            f" experts: {counted(top_k, 'slot')} of each take {format_bytes(sum(need))}",
            hint=f"--expert-memory {whole(sum(need))} or more",
        )
    plans: dict[int, SlotPlan] = {}
    left, staged, rest = budget, max_staged, sorted(sizes, key=lambda p: -expert_bytes[p])
    while rest:
        everything = sum(counts[p] * expert_bytes[p] for p in rest)
        pool, share = rest[0], max_staged // len(sizes) if rest[1:] else staged
        rest = rest[1:]
        own = left * counts[pool] * expert_bytes[pool] // everything
        own = min(max(own, need[pool]), left - sum(need[p] for p in rest))
        plan = plan_slots(own, expert_bytes[pool], counts[pool], experts, top_k, share)
        if rest:  # the last one keeps what is too little for another slot
            own = plan.arena_bytes
        plans[pool] = replace(plan, budget=own)
        left, staged = left - own, staged - share
    return PoolPlan(tuple(plans[pool] for pool in sizes), tuple(of_layer))
