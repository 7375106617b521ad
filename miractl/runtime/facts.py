"""The engine's figures, gathered into the telemetry's nouns."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import psutil
import torch

from miractl import __version__
from miractl.native.residency import Role
from miractl.policy.keys import ExpertKey
from miractl.telemetry.snapshot import (
    CacheFacts,
    ExpertRow,
    LayerFacts,
    MemoryFacts,
    ModelFacts,
    PoolFacts,
    PrefetchFacts,
    Snapshot,
    TransferFacts,
    WorkFacts,
)

if TYPE_CHECKING:
    from miractl.runtime.engine import Engine

Clock = Callable[[], float]


def snapshot(engine: "Engine", uptime: float) -> Snapshot:
    """One consistent picture: counters are read under the cache's lock."""
    cache, plan = engine.cache, engine.plan
    stats = cache.transfers.stats
    peak = stats.peak_bytes_per_second
    bets = engine.prefetcher.bets if engine.prefetcher else None
    with cache.lock:
        counters = cache.counters
        hits = cache.residency.hits.sum(axis=1).tolist()
        misses = cache.residency.misses.sum(axis=1).tolist()
        ways, pools = cache.residency.ways, pool_facts(engine)
        return Snapshot(
            timestamp=time.time(),
            uptime_seconds=uptime,
            version=__version__,
            profile=engine.options.profile,
            parameters=dict(engine.options.parameters),
            model=model_facts(engine),
            cache=CacheFacts(
                budget_bytes=plan.budget,
                slots=plan.slots,
                sets=len(ways),
                ways=min(ways),
                resident=len(cache.residency.members(Role.RESIDENT)),
                resident_bytes=sum(pool.resident_bytes for pool in pools),
                lookups=sum(hits) + sum(misses),
                hits=sum(hits),
                misses=sum(misses),
                late=counters.late,
                bypassed=cache.residency.bypassed,
                evictions=cache.residency.evictions,
                waves=counters.waves,
                waited=counters.waited,
                copied=counters.copied,
                on_host=counters.on_host,
                pools=pools,
            ),
            prefetch=PrefetchFacts(
                enabled=engine.prefetcher is not None,
                mode=engine.prefetcher.predictor.mode if engine.prefetcher else "off",
                issued=counters.issued,
                used=counters.used,
                late=counters.late,
                wasted=counters.wasted,
                cancelled=counters.cancelled,
                wasted_bytes=counters.wasted_bytes,
                withheld=bets.withheld if bets else 0,
                switches=bets.switches if bets else 0,
                off=bets is not None and bets.off,
                staged=len(cache.residency.members(Role.STAGED)),
                staged_limit=plan.staging_limit,
            ),
            transfer=TransferFacts(
                source=cache.transfers.source,
                bytes=stats.bytes,
                busy_seconds=stats.busy_seconds,
                peak_bytes_per_second=peak,
            ),
            switch=cache.switches.facts(plan.expert_bytes / peak if peak else None),
            memory=memory_facts(engine),
            work=WorkFacts(steps=counters.steps, tokens=counters.tokens),
            layers=tuple(
                LayerFacts(layer, hit + miss, hit)
                for layer, hit, miss in zip(engine.outline.layers, hits, misses, strict=True)
            ),
        )


def pool_facts(engine: "Engine") -> tuple[PoolFacts, ...]:
    """The slots of each shape of experts. The caller holds the cache's lock."""
    plan, free, real = engine.plan, engine.cache.residency.free, engine.outline.layers
    return tuple(
        PoolFacts(
            layers=tuple(real[layer] for layer in plan.layers(at)),
            expert_bytes=pool.expert_bytes,
            budget_bytes=pool.budget,
            slots=pool.slots,
            resident_bytes=(pool.slots - idle) * pool.expert_bytes,
        )
        for at, (pool, idle) in enumerate(zip(plan.pools, free, strict=True))
    )


def model_facts(engine: "Engine") -> ModelFacts:
    """The served model."""
    outline = engine.outline
    return ModelFacts(
        id=engine.options.model_id,
        family=outline.config.model_type,
        layers=outline.layers,
        experts=outline.experts,
        top_k=outline.top_k,
        expert_bytes=engine.plan.expert_bytes,
        device=str(engine.model.device),
        dtype=str(engine.model.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        expert_format=engine.layout.format,
        kernels=engine.compute.name,
        dense_format=engine.dense_format,
        kernels_note=engine.layout.note,
    )


def memory_facts(engine: "Engine") -> MemoryFacts:
    """The process, and torch's CUDA allocator where there is one."""
    cuda = engine.model.device.type == "cuda"
    stats = torch.cuda.memory_stats(engine.model.device) if cuda else {}
    return MemoryFacts(
        rss_bytes=psutil.Process().memory_info().rss,
        arena_bytes=engine.arena.nbytes,
        allocated_bytes=stats.get("allocated_bytes.all.current"),
        reserved_bytes=stats.get("reserved_bytes.all.current"),
        inactive_split_bytes=stats.get("inactive_split_bytes.all.current"),
        alloc_retries=stats.get("num_alloc_retries"),
        ooms=stats.get("num_ooms"),
    )


def expert_rows(engine: "Engine") -> list[ExpertRow]:
    """Every (layer, expert) by its real layer index."""
    cache, table = engine.cache, engine.cache.residency
    with cache.lock:
        heat, activations = engine.brain.heat.scores(), engine.brain.activations
        resident = table.members(Role.RESIDENT)
        return [
            ExpertRow(
                layer=real,
                expert=expert,
                heat=float(heat[layer, expert]),
                resident=ExpertKey(layer, expert) in resident,
                activations=int(activations[layer, expert]),
                hits=int(table.hits[layer, expert]),
                misses=int(table.misses[layer, expert]),
                prefetched=int(table.prefetched[layer, expert]),
                prefetch_used=int(table.prefetch_used[layer, expert]),
            )
            for layer, real in enumerate(engine.outline.layers)
            for expert in range(engine.outline.experts)
        ]


def used_bytes(device: torch.device, others: int) -> int:
    """What this process has taken of the memory that the slots are in.

    On a GPU that is the allocator's and the context's: what is in use beyond the bytes that
    `others` had before.
    """
    if device.type != "cuda":
        return int(psutil.Process().memory_info().rss)
    free, total = torch.cuda.mem_get_info(device)
    return max(0, total - free - others)
