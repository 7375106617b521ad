"""Slots of an engine: those of its plan, or for a budget of its own."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from miractl.native.layout import MatrixShape
from miractl.plan.books import CUDA_CONTEXT
from miractl.plan.machine import PlanMachine, Quantity, machine_for
from miractl.plan.pools import PoolPlan
from miractl.plan.sizes import Sizes, slots_asked, slots_left
from miractl.probe.snapshot import take

if TYPE_CHECKING:
    from miractl.runtime.compute import SlotLayout
    from miractl.runtime.engine import EngineOptions
    from miractl.runtime.outline import Outline

log = logging.getLogger(__name__)


def slots_for(
    options: "EngineOptions",
    outline: "Outline",
    layout: "SlotLayout",
    device: torch.device,
    dtype: torch.dtype,
    dense: Mapping[str, MatrixShape],
) -> PoolPlan:
    """The planned slots, those for the asked budget, or those for what is free.

    `dense` are the weights that are computed as int8. Raises UsageError for a budget that is too
    small, MiractlError where the rest does not fit.
    """
    sizes = sizes_of(outline, layout, device, dtype, dense)
    if options.slots is not None:
        if sizes.agree_with(options.slots):
            return PoolPlan((options.slots,), outline.of_layer)
        log.warning(
            "the plan is not for this model on %s in %s: slots by the weights' sizes alone",
            *(device, str(dtype).removeprefix("torch.")),
        )
    values = options.parameters
    staged = values["max_staged_experts"] if values["prefetch"] else 0
    if options.expert_memory is not None:
        return slots_asked(sizes, options.expert_memory, staged, options.sets)
    return slots_left(sizes, this_machine(device), staged, options.sets)


def sizes_of(
    outline: "Outline",
    layout: "SlotLayout",
    device: torch.device,
    dtype: torch.dtype,
    dense: Mapping[str, MatrixShape],
) -> Sizes:
    """What the model says of itself, computing on `device` in `dtype`, `dense` as int8."""
    kinds = zip(outline.modules, outline.of_layer, strict=True)
    apart = {f"{name}.{p}" for name, kind in kinds for p in outline.kinds[kind]} | dense.keys()
    if outline.leaves_embedding(device, dense):
        apart.add(outline.embedding)
    numbers = sum(
        parameter.numel()
        for name, parameter in outline.model.named_parameters()
        if name not in apart
    )
    return Sizes(
        kinds=outline.of_layer,
        experts=outline.experts,
        top_k=outline.top_k,
        expert=layout.sizes,
        others=numbers * dtype.itemsize + sum(shape.nbytes for shape in dense.values()),
    )


def this_machine(device: torch.device) -> PlanMachine:
    """The machine as far as slots on `device` ask; a GPU's memory as torch sees it."""
    if device.type != "cuda":
        return machine_for(take(), device="cpu")
    free, total = torch.cuda.mem_get_info(device)
    free = min(total, free + CUDA_CONTEXT)  # which asking has made
    name = torch.cuda.get_device_name(device)
    size, left = (Quantity(value, "measured") for value in (total, free))
    return PlanMachine(name, "cuda", gpu_memory=size, gpu_free=left)
