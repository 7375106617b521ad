"""Slots for a model of which only the sizes are known: no server plan, or no known geometry."""

from dataclasses import dataclass, replace

from miractl.errors import MiractlError
from miractl.plan.books import bare_ledger
from miractl.plan.kv import KV_MEMORY
from miractl.plan.ledger import Line, Refusal
from miractl.plan.machine import PlanMachine
from miractl.plan.pools import PoolPlan, plan_pools
from miractl.plan.slots import SlotPlan, parse_budget


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a loaded model says of itself. Bytes are those in the compute type."""

    kinds: tuple[int, ...]  # which shape of experts each MoE layer has
    experts: int  # of each of these layers
    top_k: int
    expert: tuple[int, ...]  # bytes of one of each shape
    others: int  # bytes of everything else

    @property
    def everything(self) -> int:
        """Bytes of all experts."""
        return self.experts * sum(self.expert[kind] for kind in self.kinds)

    def agree_with(self, slots: SlotPlan) -> bool:
        """Whether a plan was made for experts of these sizes."""
        layers = len(self.kinds)
        fits = slots.slots <= layers * self.experts and len(slots.ways) <= layers
        return fits and self.expert == (slots.expert_bytes,)

    def slots(self, budget: int, staged: int, sets: int | None = None) -> PoolPlan:
        """The division of a budget, as `plan_pools`. Raises UsageError."""
        return plan_pools(
            *(budget, self.expert, self.kinds, self.experts, self.top_k),
            max_staged=staged,
            sets=sets,
        )


def slots_asked(sizes: Sizes, expert_memory: str, staged: int, sets: int | None = None) -> PoolPlan:
    """Slots for a budget that is given. Raises UsageError."""
    return sizes.slots(parse_budget(expert_memory, sizes.everything), staged, sets)


def slots_left(
    sizes: Sizes, machine: PlanMachine, staged: int, sets: int | None = None
) -> PoolPlan:
    """Slots for what the machine has free beside the weights and the usual keys and values.

    Raises MiractlError with the line that does not fit, or where the free memory is not known.
    """
    hint = "say it: --expert-memory 4GiB"
    try:
        ledger = bare_ledger(machine)
    except MiractlError as error:
        raise MiractlError(error.message, hint=hint) from None
    weights = Line("weights", sizes.others, "all but the experts")
    ledger = ledger.with_line(weights)
    cache = max(0, min(KV_MEMORY, (ledger.left or 0) // 4))
    ledger = ledger.with_line(Line("KV cache", cache, "assumed"))
    left, least = ledger.left or 0, sizes.top_k * sum(sizes.expert)
    broken = ledger.first_break()
    if broken is None and left < least:
        broken = Refusal("expert slots", ledger.name, least, left)
    if broken is not None:
        raise replace(broken, lower=hint).error()
    return sizes.slots(min(sizes.everything, left), staged, sets)
