"""How many expert slots a byte budget gives, and how they are divided."""

from dataclasses import dataclass

from miractl.errors import UsageError
from miractl.units import format_bytes, parse_bytes, parse_share

STAGING_SHARE = 4  # at most one slot in four is lent to bets
RESERVE_SHARE = 64  # one slot in so many is for transit


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """Division of `budget` bytes: sets x ways for residents and bets, a reserve for transit.

    Bets have `staging_limit` of the ways at most, and only while there are any.
    """

    budget: int
    expert_bytes: int
    slots: int
    ways: tuple[int, ...]
    staging_limit: int

    @property
    def arena_bytes(self) -> int:
        """What the slots take; at most `budget`."""
        return self.slots * self.expert_bytes


def parse_budget(text: str, all_experts_bytes: int) -> int:
    """Bytes of `8GiB`, or of `40%` of all experts. Raises UsageError."""
    try:
        if text.strip().endswith("%"):
            return int(parse_share(text) * all_experts_bytes)
        return parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"expert memory: {error}", hint="--expert-memory 40%") from None


def plan_slots(
    budget: int,
    expert_bytes: int,
    layers: int,
    experts: int,
    top_k: int,
    max_staged: int,
    sets: int | None = None,
) -> SlotPlan:
    """Slots for a budget: S = floor(budget / expert bytes), never more than the experts there are.

    The reserve always serves demands; all other slots are residents', who lend up to `max_staged`
    to bets. If every expert fits, there is nothing to stage and no eviction. Layer l
    caches in set l mod `sets`, each in its own where `sets` is None. Raises UsageError if not even
    the top-k experts of one layer fit, or for more sets than there are layers or residents.
    """
    total = layers * experts
    slots = min(total, budget // expert_bytes)
    if slots < top_k:
        raise UsageError(
            f"expert memory {format_bytes(budget)} holds {slots} experts of "
            f"{format_bytes(expert_bytes)}; one layer needs its top {top_k} at once",
            hint=f"--expert-memory {whole(top_k * expert_bytes)} or more",
        )
    check_sets(sets, layers)
    if slots == total:
        shares = [range(at, layers, sets or layers) for at in range(sets or layers)]
        ways = tuple(experts * len(share) for share in shares)
        return SlotPlan(budget, expert_bytes, slots, ways, 0)
    staging = min(max_staged, slots // STAGING_SHARE)
    residents = slots - reserve(slots, top_k)
    if sets is not None and sets > residents:
        raise UsageError(
            f"{sets} sets are more than the {residents} experts that stay in {slots} slots",
            hint=f"--sets {max(1, residents // top_k)} or fewer, or more --expert-memory",
        )
    return SlotPlan(budget, expert_bytes, slots, even_ways(residents, sets or layers), staging)


def reserve(slots: int, top_k: int) -> int:
    """Slots for experts that pass through: one at least, and no more than half a token's.

    A wave of a step brings in so many that are worth less than every resident: with one slot for
    them, 64 tokens of a prompt took a quarter longer with a quarter of 1,024 experts in slots.
    """
    return max(1, min(top_k // 2, slots // RESERVE_SHARE))


def check_sets(sets: int | None, layers: int) -> None:
    """Raise UsageError for more sets than MoE layers."""
    if sets is not None and sets > layers:
        raise UsageError(
            f"{sets} sets are more than the {layers} layers with experts",
            hint=f"--sets {layers} or fewer",
        )


def even_ways(resident_slots: int, sets: int) -> tuple[int, ...]:
    """Ways of each of so many sets, or as the slots allow; the remainder to the first sets."""
    sets = max(1, min(sets, resident_slots))
    ways, more = divmod(resident_slots, sets)
    return tuple(ways + (1 if index < more else 0) for index in range(sets))


def whole(size: int, up: bool = True) -> str:
    """A size to type: `8MiB`; rounded up, or down, to a unit that keeps one part in four."""
    for unit in ("GiB", "MiB", "KiB"):
        scale = parse_bytes(f"1{unit}")
        if size >= 4 * scale:
            return f"{-(-size // scale) if up else size // scale}{unit}"
    return f"{size}B"
