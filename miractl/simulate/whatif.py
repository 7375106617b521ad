"""The machine that a recording is played on: as given, or one that a profile describes."""

from dataclasses import dataclass, replace

from miractl.checkpoint.geometry import Geometry
from miractl.errors import UsageError
from miractl.native.replay import Routing
from miractl.plan.catalog import published
from miractl.plan.docs import CARDS
from miractl.plan.machine import machine_for
from miractl.plan.planner import Plan, plan_for
from miractl.plan.request import MB, PlanRequest
from miractl.profiles import PARAMETERS, Profile
from miractl.simulate.linked import Setting
from miractl.telemetry.trace import Trace
from miractl.units import format_bytes, format_rate, format_seconds

REACHED = 0.8  # of a link's rate on paper


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user says of the machine; None is not said. Bytes, bytes per second, seconds.

    `token_seconds` is the time of a token, of which each layer takes its part where nothing better
    is known.
    """

    token_seconds: float
    link: float | None = None
    expert_bytes: int | None = None
    layer_seconds: float | None = None
    profile: Profile | None = None


def setting_for(asked: Asked, trace: Trace, routing: Routing) -> tuple[Setting, int | None]:
    """The setting, and the experts a layer that fit where a profile says how much memory there is.

    Raises UsageError where the profile is of no help: without a card, or for an unknown model.
    """
    values = {name: parameter.default for name, parameter in PARAMETERS.items()}
    values |= asked.profile.values if asked.profile else {}
    plan = None if asked.profile is None else _plan(asked.profile, trace, routing, values)
    notes: list[str] = []
    rate = asked.link or _rate(plan, notes)
    size = asked.expert_bytes
    if size is None:
        assert plan is not None  # whoever gives neither a size nor a profile is not let in
        size = plan.needs.expert
    compute = asked.layer_seconds or _compute(asked, plan, routing, notes)
    staged, horizon = values["max_staged_experts"], values["prediction_horizon"]
    if plan is not None and plan.slots is not None:
        staged = plan.slots.staging_limit
    notes.insert(0, f"an expert of {format_bytes(size)} takes {format_seconds(size / rate)}")
    notes.append(f"up to {staged} staged, by the learned predictor; the gate and its ledger decide")
    setting = Setting(
        *(size, size / rate, compute, staged if values["prefetch"] else 0, horizon), tuple(notes)
    )
    if plan is None or plan.slots is None:
        return setting, None
    return setting, max(1, sum(plan.slots.ways) // routing.layers)


def _plan(profile: Profile, trace: Trace, routing: Routing, values: dict[str, object]) -> Plan:
    geometry = published(trace.model or "")
    if geometry is None:
        raise UsageError(
            f"trace {trace.name}: --profile needs a model whose sizes are known,"
            f" got {trace.model or 'none'}",
            hint="--link 15.8GB/s --expert-size 13MB --slots 25% instead",
        )
    _check(geometry, trace, routing)
    machine = machine_for(None, profile)
    if machine.device != "cuda":
        raise UsageError(
            f"profile {profile.name} says nothing of a card",
            hint="--link 15.8GB/s --expert-size 13MB --slots 25% instead",
        )
    machine = replace(machine, gpu_rate=replace(machine.gpu_rate, value=CARDS.get(profile.name)))
    request = PlanRequest(
        ring=int(str(values["dma_buffer_size_mb"])) * MB,
        max_staged=int(str(values["max_staged_experts"])),
        cap_origin=f"profile {profile.name}",
    )
    plan = plan_for(geometry, machine, request)
    plan.require()
    return plan


def _check(geometry: Geometry, trace: Trace, routing: Routing) -> None:
    own = len(geometry.moe_layers), geometry.experts, geometry.top_k
    if own != (routing.layers, routing.experts, routing.top):
        raise UsageError(
            f"trace {trace.name}: {trace.model} has {own[0]} layers of {own[1]} experts, top"
            f" {own[2]}; the trace has {routing.layers} of {routing.experts}, top {routing.top}"
        )


def _rate(plan: Plan | None, notes: list[str]) -> float:
    theory = None if plan is None else plan.machine.link_theory.value
    if theory is None:
        raise UsageError("the profile's card has no link rate", hint="--link 15.8GB/s")
    notes.append(f"the link does {REACHED:.0%} of {format_rate(theory)}, its rate on paper")
    return float(REACHED * theory)


def _compute(asked: Asked, plan: Plan | None, routing: Routing, notes: list[str]) -> float:
    rate = None if plan is None else plan.machine.gpu_rate.value
    if plan is None or rate is None:
        seconds = float(asked.token_seconds / routing.layers)
        notes.append(
            f"a layer computes {format_seconds(seconds)}: --token-time over {routing.layers} layers"
        )
        return seconds
    read = plan.needs.read_by_token + routing.layers * routing.top * plan.needs.expert
    seconds = float(read / rate / routing.layers)
    notes.append(
        f"a layer computes {format_seconds(seconds)}: the {format_bytes(read)} of weights of a"
        f" token, read at {format_rate(rate)}"
    )
    return seconds
