"""What a running miractl says of itself at one moment: immutable, serialisable, complete.

The server answers it on `/v1/status`, `/metrics` is derived from it, and `status` and `top` read
nothing else. Counters grow monotonically from the start of the server; bytes and seconds are base
units; `None` means unknown or not applicable, never 0.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from miractl.units import format_bytes

SCHEMA = "miractl.status/1"

# Upper bounds of the switch-latency histogram, seconds: 1-2-5 steps from 50 us to 10 s. Experts of
# coarse models (Mixtral: 336 MiB) take tens of milliseconds on a good link and seconds from a disk.
SWITCH_BUCKETS = (
    *(50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The served model. `layers` are the real indices of its MoE layers."""

    id: str
    family: str
    layers: tuple[int, ...]
    experts: int  # per layer
    top_k: int
    expert_bytes: int  # one expert in a slot; the mean where layers differ
    device: str  # "cpu" or "cuda:0"
    dtype: str  # compute type, "float32"
    threads: int  # of each operation on the CPU
    expert_format: str  # of a slot: the compute type, or "i8" or "i4k" for records
    kernels: str  # what computes experts: "torch", or the CPU kernels' instruction set
    dense_format: str  # of attention and head: the compute type, or "int8"
    kernels_note: str | None  # why torch computes from the numbers of codes


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """Slots of one size, and the layers, by their real indices, whose experts they are for."""

    layers: tuple[int, ...]
    expert_bytes: int
    budget_bytes: int
    slots: int
    resident_bytes: int  # bytes of the occupied ones


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """The slot cache. lookups == hits + misses; late is the share of misses already on their way.

    A lookup is one expert asked for by one layer in one step, however many tokens use it.
    """

    budget_bytes: int
    slots: int  # resident and staging together
    sets: int  # layer l caches in set l mod sets
    ways: int  # residents of a set, at most; what is left over gives some sets one more
    resident: int
    resident_bytes: int  # bytes of all occupied slots, never above budget_bytes
    lookups: int
    hits: int
    misses: int
    late: int
    bypassed: int  # misses that did not become resident
    evictions: int
    waves: int  # extra passes because a step needed more experts than there are slots
    waited: int  # misses whose transfer was under way: misses == waited + copied + on_host
    copied: int  # misses that were brought on demand
    on_host: int  # misses that the host computed where they lie
    pools: tuple[PoolFacts, ...]  # one for each shape of experts; their figures add up to the above

    def slots_text(self) -> str:
        """`20 slots of 1 MiB`, or `20 slots: 12 of 3 MiB, 8 of 1 MiB`."""
        each = [f"{pool.slots} of {format_bytes(pool.expert_bytes)}" for pool in self.pools]
        if len(each) == 1:
            return f"{self.slots} slots of {format_bytes(self.pools[0].expert_bytes)}"
        return f"{self.slots} slots: {', '.join(each)}"


@dataclass(frozen=True, slots=True)
class PrefetchFacts:
    """Bets on the next layers. issued == used + late + wasted + cancelled + still staged."""

    enabled: bool
    mode: str
    issued: int
    used: int
    late: int
    wasted: int
    cancelled: int  # dropped before the transfer began: no bytes moved
    wasted_bytes: int
    withheld: int  # likely experts not bet on: the expected cost was above the gain
    switches: int  # times that bets were stopped because they lost, or resumed
    off: bool  # they are stopped now
    staged: int
    staged_limit: int


@dataclass(frozen=True, slots=True)
class TransferFacts:
    """Bytes brought into slots. `source` says from where: "disk" on a CPU, "host" over PCIe.

    "emulated": over a link that is not there, in imagined time; nothing is copied.
    """

    source: str
    bytes: int
    busy_seconds: float
    peak_bytes_per_second: float | None  # measured best, not a promise


@dataclass(frozen=True, slots=True)
class SwitchFacts:
    """Time from the demand for a missing expert until it can be computed."""

    count: int
    sum_seconds: float
    buckets: tuple[int, ...]  # counts per SWITCH_BUCKETS, not cumulative; one more for the rest
    p50_seconds: float | None  # over the last 1,000 switches
    p95_seconds: float | None
    expected_seconds: float | None  # expert_bytes / peak rate: what the machine can do


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Process and allocator. The allocator fields exist only on CUDA."""

    rss_bytes: int
    arena_bytes: int  # preallocated expert slots
    allocated_bytes: int | None
    reserved_bytes: int | None
    inactive_split_bytes: int | None
    alloc_retries: int | None
    ooms: int | None

    @property
    def fragmentation(self) -> float | None:
        """Share of reserved memory that no allocation can use: inactive_split / reserved."""
        if not self.reserved_bytes or self.inactive_split_bytes is None:
            return None
        return self.inactive_split_bytes / self.reserved_bytes


@dataclass(frozen=True, slots=True)
class WorkFacts:
    """Tokens that went through the model."""

    steps: int  # forward passes
    tokens: int  # token positions through the MoE layers, prompts included


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One MoE layer's lookups."""

    layer: int
    lookups: int
    hits: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything above at one moment."""

    timestamp: float  # unix seconds
    uptime_seconds: float
    version: str
    profile: str
    parameters: dict[str, Any]  # the 12 parameters in force, in their own units
    model: ModelFacts
    cache: CacheFacts
    prefetch: PrefetchFacts
    transfer: TransferFacts
    switch: SwitchFacts
    memory: MemoryFacts
    work: WorkFacts
    layers: tuple[LayerFacts, ...]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict with the schema's name."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Undo `to_json`. Raises ValueError for another schema, KeyError for a lacking field."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"schema is {data.get('schema')!r}, expected {SCHEMA!r}")
        parts: dict[str, Any] = {f.name: data[f.name] for f in fields(cls)}
        parts["model"] = ModelFacts(**{**data["model"], "layers": tuple(data["model"]["layers"])})
        cache = {**data["cache"]}
        pools = (PoolFacts(**{**pool, "layers": tuple(pool["layers"])}) for pool in cache["pools"])
        parts["cache"] = CacheFacts(**{**cache, "pools": tuple(pools)})
        parts["prefetch"] = PrefetchFacts(**data["prefetch"])
        parts["transfer"] = TransferFacts(**data["transfer"])
        parts["switch"] = SwitchFacts(
            **{**data["switch"], "buckets": tuple(data["switch"]["buckets"])}
        )
        parts["memory"] = MemoryFacts(**data["memory"])
        parts["work"] = WorkFacts(**data["work"])
        parts["layers"] = tuple(LayerFacts(**row) for row in data["layers"])
        return cls(**parts)


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """One expert's history, used or not. `heat` is its score in [0, 1] now.

    A recording does not tell what only a cache knows: that is None.
    """

    layer: int  # the model's real layer index
    expert: int
    heat: float
    resident: bool | None
    activations: int  # tokens routed to it
    hits: int | None
    misses: int | None
    prefetched: int | None
    prefetch_used: int | None
