"""The machine that a recording is played on: as given, or one that a profile describes."""

from dataclasses import dataclass, replace

from miractl.checkpoint.geometry import Geometry
from miractl.errors import UsageError
from miractl.native.replay import Routing
from miractl.parameters import PARAMETERS
from miractl.plan.catalog import CONFIGS, published
from miractl.plan.docs import CARDS
from miractl.plan.machine import PlanMachine, machine_for
from miractl.plan.planner import Plan, plan_for
from miractl.plan.request import MB, PlanRequest
from miractl.profiles import Profile
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

    The size of an expert is as asked, as planned, or as recorded. Raises UsageError where nobody
    knows it, and for a profile without a card.
    """
    values = {name: parameter.default for name, parameter in PARAMETERS.items()}
    values |= asked.profile.values if asked.profile else {}
    machine = None if asked.profile is None else _machine(asked.profile)
    plan = None if machine is None else _plan(machine, asked, trace, routing, values)
    notes: list[str] = []
    rate = asked.link or _rate(machine, notes)
    size = asked.expert_bytes or (trace.expert_bytes if plan is None else plan.needs.expert)
    if size is None:
        raise _unknown_size(asked, trace)
    compute = asked.layer_seconds or _compute(asked, plan, routing, notes)
    staged, horizon = values["max_staged_experts"], values["prediction_horizon"]
    if plan is not None and plan.slots is not None:
        staged = plan.slots.staging_limit
    notes.insert(0, f"an expert of {format_bytes(size)} takes {format_seconds(size / rate)}")
    notes.append(f"up to {staged} staged, by the learned predictor; the gate and its ledger decide")
    if machine is not None and plan is None:
        notes.append("how many experts the card holds is not known without the model: see --slots")
    setting = Setting(
        *(size, size / rate, compute, staged if values["prefetch"] else 0, horizon), tuple(notes)
    )
    if plan is None or plan.slots is None:
        return setting, None
    return setting, max(1, sum(plan.slots.ways) // routing.layers)


def _unknown_size(asked: Asked, trace: Trace) -> UsageError:
    text = f"trace {trace.name} does not say how large an expert is"
    if asked.profile is not None:
        text += f", and {trace.model or 'its model'} is none of {', '.join(CONFIGS)}"
    return UsageError(text, hint="--link 15.8GB/s --expert-size 13MB --slots 25%")


def _machine(profile: Profile) -> PlanMachine:
    machine = machine_for(None, profile)
    if machine.device != "cuda":
        raise UsageError(
            f"profile {profile.name} says nothing of a card",
            hint="--link 15.8GB/s --expert-size 13MB --slots 25% instead",
        )
    return replace(machine, gpu_rate=replace(machine.gpu_rate, value=CARDS.get(profile.name)))


def _plan(
    machine: PlanMachine, asked: Asked, trace: Trace, routing: Routing, values: dict[str, object]
) -> Plan | None:
    """None for a model that is not known by its name."""
    geometry = published(trace.model or "")
    if geometry is None:
        return None
    assert asked.profile is not None  # the machine is made of it
    _check(geometry, trace, routing)
    request = PlanRequest(
        ring=int(str(values["dma_buffer_size_mb"])) * MB,
        max_staged=int(str(values["max_staged_experts"])),
        cap_origin=f"profile {asked.profile.name}",
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


def _rate(machine: PlanMachine | None, notes: list[str]) -> float:
    theory = None if machine is None else machine.link_theory.value
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
