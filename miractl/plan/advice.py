"""What a plan has to say for itself: warnings, what to change first, and its facts as data."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from miractl.plan.cache import token_cycle
from miractl.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from miractl.plan.planner import Plan

FEWEST = 4  # experts a layer, below which choosing among them is not worth a cache


def advised(plan: "Plan") -> "Plan":
    """The plan with its warnings and its one sentence of advice."""
    return replace(plan, warnings=tuple(warnings(plan)), change_first=change_first(plan))


def machine_notes(plan: "Plan") -> list[str]:
    """What is odd about the machine, and what follows from it here."""
    found, narrow, limit = list(plan.machine.notes), plan.machine.narrow, plan.staging.limit
    if narrow is None:
        return found
    fact = f"the card can do x{narrow[1]}, its slot gives x{narrow[0]}"
    if not plan.needs.request.is_cap_asked and limit == 1:
        fact += ": 1 expert is staged at a time (--max-staged-experts for more)"
    elif limit > 1:
        fact += ": stage little, --max-staged-experts 1"
    return [*found, fact]


def warnings(plan: "Plan") -> list[str]:
    """What the user should know, with the reason: the boundaries of the method."""
    g, found = plan.needs.geometry, machine_notes(plan)
    cycle = token_cycle(g)
    if plan.slots is not None and plan.slots.slots < min(cycle, g.expert_count):
        found.append(
            f"{plan.slots.slots:,} slots are fewer than one token asks for, {cycle:,} ="
            f" {len(g.moe_layers)} layers × {g.top_k}: most lookups will miss"
        )
    if g.experts < FEWEST:
        found.append(f"{g.experts} experts a layer: with fewer than {FEWEST} a cache has no choice")
    fastest = plan.forecast.fastest
    if plan.slots is not None and fastest is not None and fastest > plan.needs.request.p95:
        found.append(
            f"a P95 of {format_seconds(plan.needs.request.p95)} a token is out of reach: the best"
            f" case is {format_seconds(fastest)}, with experts of {format_bytes(plan.needs.expert)}"
        )
    disk = next((roof for roof in plan.forecast.roofs if roof.name == "disk"), None)
    if plan.slots is not None and disk is not None and disk.high:
        found.append(
            "not all experts fit in memory: some are read from disk for the token that needs them"
        )
    return found


def change_first(plan: "Plan") -> str:
    """One sentence: what would help most."""
    if plan.refusal is not None:
        return plan.refusal.lower
    slots, g, roof = plan.slots, plan.needs.geometry, plan.forecast.binding
    assert slots is not None
    copies = [r for r in plan.forecast.unknown if r.name in ("link", "disk")]
    if copies:
        options = " and ".join(r.option for r in copies)
        return f"find out what binds: give {options}, or measure with --measure"
    if slots.slots == g.expert_count:
        return "nothing: every expert is resident; there is room for more requests or context"
    if roof is None:
        return "give rates (--link, --gpu-rate, --host-rate, --disk) to learn what binds"
    more = "more memory for slots (shorter --context, less --kv-memory, a larger card)"
    sentences = {
        "link": f"the link binds at {format_rate(roof.rate.value)}: {more}, or a wider slot",
        "disk": "the disk binds: more host memory, so that missing experts are not on disk",
        "host memory": f"reading the host's memory binds: {more}",
        "computing": "computing binds: the cache is good enough",
    }
    return sentences.get(roof.name, f"the {roof.name} binds: the cache is good enough")


def plan_facts(plan: "Plan") -> dict[str, Any]:
    """Everything in a plan as plain data."""
    needs, g, machine = plan.needs, plan.needs.geometry, plan.machine
    quantities = (
        *("gpu_memory", "gpu_free", "host_memory", "host_free", "link", "link_theory", "disk"),
        *("gpu_rate", "host_rate", "compute", "cores"),
    )
    return {
        "runs": plan.runs,
        "refusal": None if plan.refusal is None else plan.refusal.to_json(),
        "model": {
            "family": g.family,
            "moe_layers": list(g.moe_layers),
            "experts": g.experts,
            "top_k": g.top_k,
            "parameters": g.parameters,
            "active_parameters": g.active_parameters,
            "format": g.format.name,
            "stored_bytes_per_expert": g.bytes_per_expert,
        },
        "machine": {
            "name": machine.name,
            "device": machine.device,
            "unified": machine.unified,
            "pin_budget": machine.pin_budget,
            **{name: asdict(getattr(machine, name)) for name in quantities},
        },
        "request": {
            **asdict(needs.request),
            "context": needs.context,
            "dtype": needs.dtype,
            "prefill_chunk": needs.chunk,
        },
        "kv_cache": _kv_facts(plan),
        "ledgers": [ledger.to_json() for ledger in plan.ledgers],
        "slots": _slot_facts(plan),
        "staging": plan.staging.to_json(),
        "hit_rate": plan.hits.to_json(),
        "forecast": plan.forecast.to_json(),
        "max_concurrency": plan.max_concurrency,
        "warnings": list(plan.warnings),
        "change_first": plan.change_first,
    }


def _kv_facts(plan: "Plan") -> dict[str, Any]:
    cache = plan.needs.kv_cache()
    return {
        "bytes": plan.needs.kv().bytes,
        "bound": plan.needs.kv_bound,
        "blocks": None if cache is None else cache.blocks,
        "full_requests": plan.needs.at_once,
    }


def _slot_facts(plan: "Plan") -> dict[str, Any]:
    slots, (sets, ways) = plan.slots, plan.division
    return {
        "slots": 0 if slots is None else slots.slots,
        "expert_bytes": plan.needs.expert,
        "expert_memory": plan.expert_memory,
        "experts": plan.needs.geometry.expert_count,
        "ways": [] if slots is None else list(slots.ways),
        "staging_limit": 0 if slots is None else slots.staging_limit,
        "by_cores": {"sets": sets, "ways": ways},
        "token_cycle": token_cycle(plan.needs.geometry),
    }
