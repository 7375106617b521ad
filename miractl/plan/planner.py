"""The plan: will it run on this machine, with which settings, and how fast at most."""

from bisect import bisect_left
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from miractl.checkpoint.geometry import Geometry
from miractl.native import available
from miractl.plan import advice
from miractl.plan.books import (
    base_ledger,
    disk_ledger,
    host_ledger,
    kv_bound,
    on_disk,
    with_pages,
)
from miractl.plan.cache import HitRange, divide, expected_hits
from miractl.plan.forecast import Forecast, forecast
from miractl.plan.ledger import Ledger, Line, Refusal
from miractl.plan.machine import PlanMachine
from miractl.plan.needs import Needs
from miractl.plan.request import PlanRequest
from miractl.plan.slots import SlotPlan, check_sets, parse_budget, plan_slots, whole
from miractl.plan.staging import StagingPlan, plan_staging
from miractl.plan.trace import replayed_hits
from miractl.telemetry.trace import Trace
from miractl.units import MIB, format_bytes

SCHEMA = "miractl.plan/1"
MOST_REQUESTS = 4096  # that a forecast is searched for
UNBOUND = 2**62  # bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that was worked out. Without `slots` it does not run, and `refusal` says why."""

    needs: Needs
    machine: PlanMachine
    ledgers: tuple[Ledger, ...]  # the memory of the slots first
    staging: StagingPlan
    slots: SlotPlan | None
    refusal: Refusal | None
    division: tuple[int, int]  # N x M by the cores
    hits: HitRange
    forecast: Forecast
    max_concurrency: int
    warnings: tuple[str, ...]
    change_first: str

    @property
    def runs(self) -> bool:
        """Whether everything fits."""
        return self.refusal is None

    @property
    def expert_memory(self) -> int:
        """Bytes of all slots; what `--expert-memory` would say."""
        return 0 if self.slots is None else self.slots.arena_bytes

    @property
    def own_bytes(self) -> int:
        """Bytes for this program in the memory of the slots, these included."""
        kept = ("in use", "headroom", "experts, as pages")
        return sum(line.bytes for line in self.ledgers[0].lines if line.name not in kept)

    @property
    def others_bytes(self) -> int:
        """Bytes of that memory that others had taken before."""
        return sum(line.bytes for line in self.ledgers[0].lines if line.name == "in use")

    def require(self) -> SlotPlan:
        """The slots. Raises MiractlError with the line that breaks the plan."""
        if self.refusal is not None:
            raise self.refusal.error()
        assert self.slots is not None
        return self.slots

    def to_json(self) -> dict[str, Any]:
        """Plain data, complete: bytes, seconds, shares."""
        return {"schema": SCHEMA, **advice.plan_facts(self)}


def plan_for(
    geometry: Geometry, machine: PlanMachine, request: PlanRequest, trace: Trace | None = None
) -> Plan:
    """Plan a model on a machine.

    Raises UsageError for a request that means nothing here, MiractlError for a machine whose
    memory is unknown. What does not fit is no error but a plan with a refusal.
    """
    check_sets(request.sets, len(geometry.moe_layers))
    needs = Needs(
        *(geometry, request, request.dtype or ("F32" if machine.device == "cpu" else "BF16")),
        record=geometry.record_bytes(machine.device),
        on_cpu=machine.device == "cpu",
        kernels=machine.device == "cpu" and available(),
    )
    bound = request.kv_memory
    needs = replace(needs, kv_bound=kv_bound(needs, machine) if bound is None else bound)
    base = base_ledger(needs, machine)
    host = None if machine.in_one_memory else host_ledger(needs, machine)
    budget = _budget(needs, base)
    free_slots = min(geometry.expert_count, max(0, budget) // needs.expert)
    staging = _staging(needs, machine, base, free_slots)
    slots = _slots(needs, budget, staging)
    ledgers = [base.with_line(_slot_line(needs, slots))]
    ledgers += [host] if host is not None else []
    refusal = _refusal(needs, machine, ledgers, slots, budget)
    if refusal is not None:
        slots = None
    hits = _hits(needs, slots, trace)
    plan = Plan(
        needs,
        machine,
        (*(with_pages(needs, ledger) for ledger in ledgers), disk_ledger(needs)),
        staging,
        slots,
        refusal,
        divide(free_slots, max(1, int(machine.cores.value or 1))),
        hits,
        forecast(needs, machine, hits, on_disk(needs, machine, ledgers[1:])),
        max_concurrency(needs, machine),
        (),
        "",
    )
    return advice.advised(plan)


def _budget(needs: Needs, base: Ledger) -> int:
    """Bytes for slots: as asked, or what the other lines leave; never more than all experts."""
    everything = needs.expert * needs.geometry.expert_count
    if needs.request.expert_memory is not None:
        return min(everything, parse_budget(needs.request.expert_memory, everything))
    return max(0, min(everything, base.left or 0))


def _staging(needs: Needs, machine: PlanMachine, base: Ledger, slots: int) -> StagingPlan:
    named = {line.name: line.bytes for line in base.lines}
    total, headroom, kv = base.total or 0, named.pop("headroom"), named.pop("KV cache")
    pinned = None
    if machine.device == "cuda" and machine.pin_budget is not None:
        pinned = machine.pin_budget, needs.pinned_factor
    every, (cap, cap_name) = slots == needs.geometry.expert_count, _cap(needs, machine)
    return plan_staging(
        total=total,
        baseline=sum(named.values()),
        headroom=headroom,
        kv_reserve=kv,
        expert=needs.expert,
        cap=0 if every else cap,
        cap_name="every expert being resident" if every else cap_name,
        factor=Fraction(1),
        factor_from="slots are cut from one arena without gaps",
        pinned=pinned,
        slots=None if every else slots,
    )


def _cap(needs: Needs, machine: PlanMachine) -> tuple[int, str]:
    """Experts to stage at most whatever the memory, and by what: one behind a narrow slot."""
    request = needs.request
    if machine.narrow is None or request.is_cap_asked or request.cap <= 1:
        return request.cap, request.cap_name
    return 1, "the slot of x{} for a card of x{}".format(*machine.narrow)


def _slots(needs: Needs, budget: int, staging: StagingPlan) -> SlotPlan | None:
    g = needs.geometry
    if budget // needs.expert < g.top_k:
        return None
    return plan_slots(
        *(budget, needs.expert, len(g.moe_layers), g.experts, g.top_k),
        max_staged=staging.limit,
        sets=needs.request.sets,
    )


def _slot_line(needs: Needs, slots: SlotPlan | None) -> Line:
    """The slots' line; where not even one layer's top-k fits, what these would take."""
    if slots is not None:
        text = f"{slots.slots:,} slots × {slots.expert_bytes:,} B"
        return Line("expert slots", slots.arena_bytes, text)
    top_k, each = needs.geometry.top_k, needs.expert
    return Line(
        "expert slots", top_k * each, f"at least the top {top_k} of a layer × {format_bytes(each)}"
    )


def _refusal(
    needs: Needs,
    machine: PlanMachine,
    ledgers: list[Ledger],
    slots: SlotPlan | None,
    budget: int,
) -> Refusal | None:
    """The first line that breaks the plan, with what to turn down."""
    found = next((ledger.first_break() for ledger in ledgers if ledger.first_break()), None)
    ring = needs.ring().bytes
    least, asked = needs.geometry.top_k * needs.expert, needs.request.kv_memory
    if asked is not None and needs.kv().bytes > asked:
        found = Refusal("KV cache", "the KV memory", needs.kv().bytes, asked)
    if found is None and slots is None:
        found = Refusal("expert slots", "the expert memory", least, budget)
    if found is None and machine.device == "cuda" and machine.pin_budget is not None:
        over = ring > machine.pin_budget
        found = (
            Refusal("staging ring", "the pin budget", ring, machine.pin_budget) if over else None
        )
    return None if found is None else replace(found, lower=_lower(needs, machine, found))


def _lower(needs: Needs, machine: PlanMachine, refusal: Refusal) -> str:
    """What to turn down so that it would run, found by trying."""
    request, least = needs.request, needs.geometry.top_k * needs.expert
    if refusal.line == "host tier":
        return "--host-compute off"
    if refusal.line == "staging ring" and needs.ring().bytes > needs.pinned:
        return f"--dma-buffer-size-mb {max(1, request.ring // 2 // 10**6)} or less"
    if refusal.line in ("staging ring", "this program", "reading"):
        return f"more memory for the host than {format_bytes(refusal.free)}"
    if refusal.memory == "the KV memory":
        return f"--kv-memory {-(-refusal.needed // MIB)}MiB or more, or a shorter --context"
    if refusal.memory == "the expert memory":
        return f"--expert-memory {whole(least)} or more"
    if refusal.line == "expert slots" and request.expert_memory and refusal.free >= least:
        return f"--expert-memory {whole(refusal.free, up=False)} or less"
    most = max_concurrency(needs, machine)
    if most > 0 and request.kv_memory is not None:
        fitting = replace(request, concurrency=most)
        size = replace(needs, request=fitting, kv_bound=UNBOUND).kv().bytes
        return f"--kv-memory {-(-size // MIB)}MiB or less"
    context = needs.context
    while (context := context // 2) >= 256:
        if _fits(replace(needs, request=replace(request, context=context), kv_bound=0), machine):
            return f"--context {context} or less"
    return "a smaller or quantised model, or more memory: no context is short enough"


def _fits(needs: Needs, machine: PlanMachine) -> bool:
    """Whether the memory of the slots has room for the fewest that run."""
    left = base_ledger(needs, machine).left
    return left is not None and left >= needs.geometry.top_k * needs.expert


def _hits(needs: Needs, slots: SlotPlan | None, trace: Trace | None) -> HitRange:
    if slots is None:
        return HitRange(0.0, 0.0, "there are no slots", is_assumed=False)
    if trace is not None and sum(slots.ways) < needs.geometry.expert_count:
        return replayed_hits(trace, slots.ways)
    return expected_hits(needs.geometry, sum(slots.ways), len(slots.ways))


def max_concurrency(needs: Needs, machine: PlanMachine) -> int:
    """Requests of full context that fit beside the fewest slots that run: one layer's top-k."""

    def fits(count: int) -> bool:
        request = replace(needs.request, concurrency=count)
        return _fits(replace(needs, request=request, kv_bound=UNBOUND), machine)

    if not needs.is_batched:  # these run one at a time
        return int(fits(1))
    return bisect_left(range(1, MOST_REQUESTS + 1), True, key=lambda count: not fits(count))
