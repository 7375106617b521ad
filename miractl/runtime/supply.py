"""Where experts come from: the memory that they are computed from, and what brings them there."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from miractl.errors import UsageError
from miractl.native.kernels import Pool
from miractl.plan.needs import landings
from miractl.plan.pools import PoolPlan
from miractl.plan.request import refuse_host
from miractl.runtime.arena import SlotArena
from miractl.runtime.compute import KernelCompute, SlotLayout
from miractl.runtime.emulated import EmulatedLink
from miractl.runtime.host_compute import HostCompute
from miractl.runtime.host_experts import HostExperts
from miractl.runtime.host_tier import HostTier
from miractl.runtime.movers import CudaMover, DiskMover, TierMover
from miractl.runtime.parcels import Numbers, Parcels, Records
from miractl.runtime.source import ExpertSource
from miractl.runtime.streams import GPUS, Streams
from miractl.runtime.transfer import Mover, Transfers
from miractl.runtime.transfer_queue import TransferQueue
from miractl.units import format_bytes

if TYPE_CHECKING:
    from miractl.runtime.engine import EngineOptions
    from miractl.runtime.outline import Outline

log = logging.getLogger(__name__)

MB = 10**6  # the unit of dma_buffer_size_mb
PACK = "miractl pack MODEL --experts int4 -o DIR"
Sleep = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Supply:
    """What a model's experts come from.

    `memory`: slots, or all experts behind an emulated link. `host`: one of host_compute.MODES, None
    where there is no device. `tier`: all experts in host memory, where the host computes some of
    them beside a GPU, by whose `streams` they get there.
    """

    memory: SlotArena | HostTier
    transfers: Transfers
    host: str | None = None
    tier: HostTier | None = None
    streams: Streams | None = None


def supply_for(
    options: "EngineOptions",
    outline: "Outline",
    source: ExpertSource,
    plan: PoolPlan,
    layout: SlotLayout,
    device: torch.device,
    clock: Callable[[], float],
    sleep: Sleep,
) -> Supply:
    """Slots and a queue of transfers into them; or all experts behind an emulated link.

    Such a link goes by `clock` and `sleep`.
    """
    sizes = len(outline.layers), outline.experts
    if options.emulate_link is not None:
        tier = HostTier(source, *sizes, plan.expert_bytes)
        link = EmulatedLink(options.emulate_link, plan.expert_bytes, clock, sleep)
        return Supply(tier, link, options.host_compute or "auto")
    pools = [(p.slots, shapes) for p, shapes in zip(plan.pools, layout.kinds, strict=True)]
    arena = SlotArena(pools, layout.dtype, device)
    if device.type not in GPUS:
        return Supply(arena, TransferQueue(DiskMover(source, arena), clock))
    streams, ring = GPUS[device.type](device), options.parameters["dma_buffer_size_mb"] * MB
    record = None if outline.manifest is None else outline.manifest.record
    parcels: Parcels = Numbers(arena)
    if record is not None and record.quantized is not None:
        parcels = Records(arena, record, landings(record.nbytes, ring))
    if not has_tier(options, device):
        mover: Mover = CudaMover(source, parcels, ring, streams)
        return Supply(arena, TransferQueue(mover, clock), "off", streams=streams)
    assert record is not None
    tier = HostTier(source, *sizes, record.nbytes)
    if tier.lock(streams):
        mover = TierMover(tier, parcels, streams)
    else:
        log.warning(
            "the system does not page-lock %s: experts go through the ring",
            format_bytes(tier.nbytes),
        )
        mover = CudaMover(tier, parcels, ring, streams)
    return Supply(arena, TransferQueue(mover, clock), options.host_compute, tier, streams)


def has_tier(options: "EngineOptions", device: torch.device) -> bool:
    """Whether all experts lie in host memory beside a GPU, for the host to compute some."""
    return device.type in GPUS and options.host_compute in ("auto", "on")


def refuse_link(
    options: "EngineOptions", outline: "Outline", layout: SlotLayout, device: torch.device
) -> None:
    """Raise UsageError where a link cannot be emulated, or the host cannot compute beside one."""
    on_gpu = device.type in GPUS
    if options.emulate_link is None:
        if options.host_compute is not None and (options.host_compute != "off" or not on_gpu):
            record = None if outline.manifest is None else outline.manifest.record
            refuse_host(on_gpu, record, "--emulate-link 15.8GB/s")
    elif device.type != "cpu":
        raise UsageError(f"--emulate-link is for the CPU, and the model runs on {device}")
    elif layout.records is None:
        why = "" if layout.note is None else f" ({layout.note})"
        raise UsageError(
            f"--emulate-link needs experts that are computed as stored, int8 or int4{why}",
            hint=PACK,
        )
    elif options.expert_memory is None:
        raise UsageError(
            "--emulate-link needs --expert-memory: the emulated device has no memory of its own",
            hint="--expert-memory 25%",
        )


def host_for(supply: Supply, transfers: Transfers) -> HostCompute | None:
    """What decides by these transfers where misses are computed; None: they are always brought."""
    if supply.host in (None, "off"):
        return None
    return HostCompute(transfers, supply.host == "on", is_beside=supply.tier is not None)


def host_experts(supply: Supply, outline: "Outline", pool: Pool | None) -> HostExperts | None:
    """What computes experts on the host beside a GPU."""
    if supply.tier is None or supply.streams is None:
        return None
    assert outline.manifest is not None
    quantized = outline.manifest.record.quantized
    assert quantized is not None
    kernels = KernelCompute(supply.tier, quantized, outline.experts, pool)
    return HostExperts(kernels, supply.streams)
