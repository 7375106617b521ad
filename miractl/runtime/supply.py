"""Where experts come from: the memory that they are computed from, and what brings them there."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from miractl.errors import UsageError
from miractl.plan.pools import PoolPlan
from miractl.runtime.arena import SlotArena
from miractl.runtime.compute import SlotLayout
from miractl.runtime.emulated import EmulatedLink
from miractl.runtime.host_compute import HostCompute
from miractl.runtime.host_tier import HostTier
from miractl.runtime.movers import CudaMover, DiskMover
from miractl.runtime.source import ExpertSource
from miractl.runtime.streams import CudaStreams
from miractl.runtime.transfer import Transfers
from miractl.runtime.transfer_queue import TransferQueue

if TYPE_CHECKING:
    from miractl.runtime.engine import EngineOptions
    from miractl.runtime.outline import Outline

MB = 10**6  # the unit of dma_buffer_size_mb
Sleep = Callable[[float], None]


def supply_for(
    options: "EngineOptions",
    outline: "Outline",
    source: ExpertSource,
    plan: PoolPlan,
    layout: SlotLayout,
    device: torch.device,
    clock: Callable[[], float],
    sleep: Sleep,
) -> tuple[SlotArena | HostTier, Transfers]:
    """Slots and a queue of transfers into them; or all experts behind an emulated link.

    Such a link goes by `clock` and `sleep`.
    """
    if options.emulate_link is not None:
        tier = HostTier(source, len(outline.layers), outline.experts, plan.expert_bytes)
        return tier, EmulatedLink(options.emulate_link, plan.expert_bytes, clock, sleep)
    pools = [(p.slots, shapes) for p, shapes in zip(plan.pools, layout.kinds, strict=True)]
    arena = SlotArena(pools, layout.dtype, device)
    ring = options.parameters["dma_buffer_size_mb"] * MB
    mover = (
        CudaMover(source, arena, ring, CudaStreams(device))
        if device.type == "cuda"
        else DiskMover(source, arena)
    )
    return arena, TransferQueue(mover, clock)


def refuse_link(options: "EngineOptions", layout: SlotLayout, device: torch.device) -> None:
    """Raise UsageError where a link cannot be emulated, or there is no device to compute beside."""
    if options.emulate_link is None:
        if options.host_compute is not None:
            raise UsageError(
                "--host-compute: there is no device that computes beside the host",
                hint="--emulate-link 15.8GB/s",
            )
    elif device.type != "cpu":
        raise UsageError(f"--emulate-link is for the CPU, and the model runs on {device}")
    elif layout.records is None:
        why = "" if layout.note is None else f" ({layout.note})"
        raise UsageError(
            f"--emulate-link needs experts that are computed as stored, int8 or int4{why}",
            hint="miractl pack MODEL --experts int4 -o DIR",
        )
    elif options.expert_memory is None:
        raise UsageError(
            "--emulate-link needs --expert-memory: the emulated device has no memory of its own",
            hint="--expert-memory 25%",
        )


def host_for(options: "EngineOptions", transfers: Transfers) -> HostCompute | None:
    """What decides where misses are computed; None where they are always brought."""
    if options.emulate_link is None or options.host_compute == "off":
        return None
    return HostCompute(transfers, is_always=options.host_compute == "on")
