"""A small server's snapshots and experts, for everything that shows them."""

from dataclasses import replace
from typing import Any

from miractl.telemetry.experts import ExpertTable
from miractl.telemetry.snapshot import (
    SWITCH_BUCKETS,
    CacheFacts,
    ExpertRow,
    LayerFacts,
    MemoryFacts,
    ModelFacts,
    PoolFacts,
    PrefetchFacts,
    Snapshot,
    SwitchFacts,
    TransferFacts,
    WorkFacts,
)

MIB = 2**20
_SWITCHES = (0, 0, 4, 30, 50, 14, 2)  # up to 5 ms; the rest of the buckets is empty
BASE = Snapshot(
    timestamp=1_796_000_000.0,
    uptime_seconds=100.0,
    version="0.1.0",
    profile="a10",
    parameters={"cache_threshold": 0.25, "prefetch": True},
    model=ModelFacts(
        "demo",
        "qwen3_moe",
        (0, 1, 2, 5),
        16,
        4,
        MIB,
        "cpu",
        "float32",
        2,
        "i8",
        "avx2",
        "float32",
        None,
    ),
    cache=CacheFacts(
        budget_bytes=20 * MIB,
        slots=20,
        sets=4,
        ways=4,
        resident=16,
        resident_bytes=16 * MIB,
        lookups=4000,
        hits=3000,
        misses=1000,
        late=100,
        bypassed=50,
        evictions=934,
        waves=3,
        waited=100,
        copied=900,
        on_host=0,
        pools=(PoolFacts((0, 1, 2, 3), MIB, 20 * MIB, 20, 16 * MIB),),
    ),
    prefetch=PrefetchFacts(
        *(True, "lookahead", 600, 420, 60, 100, 20, 100 * MIB),
        *(90, 2, False, 0, 4),
    ),
    transfer=TransferFacts("disk", 1580 * MIB, 2.0, 1e9),
    switch=SwitchFacts(
        count=100,
        sum_seconds=0.09,
        buckets=(*_SWITCHES, *(0,) * (len(SWITCH_BUCKETS) + 1 - len(_SWITCHES))),
        p50_seconds=800e-6,
        p95_seconds=2.5e-3,
        expected_seconds=1.05e-3,
    ),
    memory=MemoryFacts(400 * MIB, 20 * MIB, None, None, None, None, None),
    work=WorkFacts(steps=250, tokens=500),
    layers=tuple(
        LayerFacts(layer, 1000, hits) for layer, hits in ((0, 900), (1, 800), (2, 700), (5, 600))
    ),
)
CUDA_MEMORY = MemoryFacts(900 * MIB, 20 * MIB, 700 * MIB, 1000 * MIB, 50 * MIB, 0, 0)


def changed(base: Snapshot = BASE, /, **parts: Any) -> Snapshot:
    """A copy with other fields: a dict changes fields of a part, any other value replaces it."""
    new = {
        name: replace(getattr(base, name), **value)
        if isinstance(value, dict) and name != "parameters"
        else value
        for name, value in parts.items()
    }
    return replace(base, **new)


def on_cuda(base: Snapshot = BASE) -> Snapshot:
    """The same server on a GPU."""
    return changed(
        base, model={"device": "cuda:0"}, transfer={"source": "host"}, memory=CUDA_MEMORY
    )


def later(base: Snapshot = BASE, seconds: float = 1.0, share: float = 0.8) -> Snapshot:
    """The server `seconds` on: 40 lookups a second of which `share` hit, the rest are misses."""
    lookups = round(40 * seconds)
    hits = round(lookups * share)
    misses = lookups - hits
    buckets = list(base.switch.buckets)
    buckets[4] += misses
    first = base.layers[0]
    return changed(
        base,
        timestamp=base.timestamp + seconds,
        uptime_seconds=base.uptime_seconds + seconds,
        cache={
            "lookups": base.cache.lookups + lookups,
            "hits": base.cache.hits + hits,
            "misses": base.cache.misses + misses,
            "evictions": base.cache.evictions + misses,
        },
        transfer={
            "bytes": base.transfer.bytes + misses * MIB,
            "busy_seconds": base.transfer.busy_seconds + misses * 1.05e-3,
        },
        switch={"buckets": tuple(buckets), "count": base.switch.count + misses},
        work={"steps": base.work.steps + 10, "tokens": base.work.tokens + 20},
        layers=(
            LayerFacts(first.layer, first.lookups + lookups, first.hits + hits),
            *base.layers[1:],
        ),
    )


def expert_table(layers: tuple[int, ...] = (0, 3), experts: int = 4) -> ExpertTable:
    """Experts 0 and 1 of each layer are in use, the rest never was."""
    rows = tuple(
        ExpertRow(
            layer=layer,
            expert=expert,
            heat=(0.75, 0.125)[expert] if expert < 2 else 0.0,
            resident=expert == 0,
            activations=(30, 10)[expert] if expert < 2 else 0,
            hits=(25, 4)[expert] if expert < 2 else 0,
            misses=(5, 6)[expert] if expert < 2 else 0,
            prefetched=3 if expert == 1 else 0,
            prefetch_used=2 if expert == 1 else 0,
        )
        for layer in layers
        for expert in range(experts)
    )
    return ExpertTable(1_796_000_000.25, "demo", rows)
