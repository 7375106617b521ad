"""What a model needs in memory while it serves: bytes, each with the words it is derived by."""

import math
from dataclasses import dataclass

from miractl.checkpoint.blueprint import Role, Tensor
from miractl.checkpoint.dense import HEAD, dense_shape
from miractl.checkpoint.formats import ELEMENT_BYTES
from miractl.checkpoint.geometry import Geometry
from miractl.checkpoint.layers import FULL, SLIDING
from miractl.doctor.pinned import rounded
from miractl.plan.kv import FREE_SHARE, KV_MEMORY, PAGE, SPARE, KvCache, paged_cache
from miractl.plan.request import PlanRequest
from miractl.units import MIB, format_bytes

CHUNK = 512  # prompt tokens of one step, where requests are batched
PART = 64 * MIB  # bound of the experts' outputs before they are summed
TRANSFERS = 3  # two threads that read ahead, and the one that waits
LANDINGS = 6  # records on a GPU that are not decoded yet, at most: of two demands and four bets


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes and how they come about."""

    bytes: int
    formula: str


@dataclass(frozen=True, slots=True)
class Needs:
    """One model, one way of using it, in the compute type."""

    geometry: Geometry
    request: PlanRequest
    dtype: str  # BF16, F16 or F32
    kv_bound: int = KV_MEMORY  # bytes for keys and values; one request gets what it needs
    record: int | None = None  # bytes of an expert where it is computed from its record
    on_cpu: bool = False  # whether it is computed there
    kernels: bool = False  # and by the kernels, as far as they can

    @property
    def element(self) -> int:
        """Bytes of one number."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def expert(self) -> int:
        """Bytes of one expert in a slot."""
        return self.record or self.geometry.expert_bytes_as(self.dtype)

    @property
    def parts(self) -> tuple[int, ...]:
        """Bytes of the tensors that one slot consists of: gate and up are one, biases follow."""
        if self.record is not None:
            return (self.record,)
        sizes = {n: math.prod(shape) for n, shape in self.geometry.expert_shapes.items()}
        for suffix in ("", "_bias"):
            gate = sizes.pop(f"gate_proj{suffix}", None)
            if gate is not None:
                sizes[f"up_proj{suffix}"] += gate
        return tuple(size * self.element for size in sizes.values())

    @property
    def parcel(self) -> int | None:
        """Bytes of a record that a GPU gets and decodes; None where it gets the slot's numbers."""
        record = self.geometry.record
        return None if self.on_cpu or record is None or not record.quantized else record.nbytes

    @property
    def has_tier(self) -> bool:
        """Whether all experts lie in host memory, for the host to compute some beside a GPU."""
        return self.request.host_compute and self.parcel is not None

    @property
    def is_batched(self) -> bool:
        """Whether requests share steps: the rest of the families runs one request at a time.

        These keep a fixed state, or a latent that is expanded to keys and values in every step.
        """
        mixers = set(self.geometry.blueprint.mixers)
        latent = any(tensor.name.endswith("kv_b_proj.weight") for tensor in self._others())
        return mixers <= {FULL, SLIDING, "mlp", "moe"} and bool(self.geometry.kv) and not latent

    @property
    def context(self) -> int:
        """Tokens of one request."""
        return self.request.window(self.geometry.context)

    @property
    def chunk(self) -> int:
        """Prompt tokens that one step computes."""
        asked = self.request.prefill_chunk or (CHUNK if self.is_batched else self.context)
        return min(asked, self.context * self.request.concurrency)

    def weights(self) -> Amount:
        """Everything but the routed experts and what stays in its file."""
        left = self.left_in_file
        count, (dense, blocks) = self.geometry.non_expert_parameters - left, self.dense()
        text = f"{count - dense:,} parameters × {self.element} B"
        if blocks:
            text += f" + {dense:,} as int8, {format_bytes(blocks)}"
        if left:
            text += "; the embedding stays in its file"
        return Amount((count - dense) * self.element + blocks, text)

    @property
    def left_in_file(self) -> int:
        """Parameters of an embedding that is read by rows: on a CPU, where no head needs it."""
        g = self.geometry
        has_head = not g.tied or (g.dense and self.kernels)
        return g.vocabulary * g.hidden if self.on_cpu and has_head else 0

    def dense(self) -> tuple[int, int]:
        """Parameters that become int8 blocks, and the bytes of these; a tied head's is one more."""
        if not (self.request.dense or (self.geometry.dense and self.kernels)):
            return 0, 0
        g, count, size = self.geometry, 0, 0
        for tensor in (*g.blueprint.of(Role.OTHER), *g.blueprint.of(Role.EMBEDDING)):
            if (shape := dense_shape(tensor.name, tensor.shape)) is not None:
                count += tensor.size * tensor.copies
                size += shape.nbytes * tensor.copies
        if g.tied and (head := dense_shape(HEAD, (g.vocabulary, g.hidden))) is not None:
            size += head.nbytes
        return count, size

    def kv_cache(self) -> KvCache | None:
        """The cache of those that share steps; None where requests run one at a time."""
        if not self.is_batched:
            return None
        g, count = self.geometry, self.request.concurrency
        return paged_cache(g.kv, self.element, self.context, count, self.kv_bound)

    @property
    def at_once(self) -> int:
        """Requests of full context that run at the same time."""
        cache = self.kv_cache()
        return 1 if cache is None else cache.requests

    def kv(self) -> Amount:
        """Keys and values: of all requests at full context, or of as many as the bound allows."""
        cache, tokens, count = self.kv_cache(), self.context, self.request.concurrency
        if cache is None:
            groups = [
                f"{g.layers} layers × {g.elements:,} × {self.element} B"
                + (f" for the last {g.window:,}" if g.window and g.window < tokens else "")
                for g in self.geometry.kv
            ]
            text = f"{tokens:,} tokens × ({' + '.join(groups) or 'nothing'}); one request at a time"
            return Amount(self.geometry.kv_bytes(tokens, self.element), text)
        elements = max(group.elements for group in self.geometry.kv)
        text = (
            f"({cache.sectors:,} + {SPARE} spare) × {PAGE} tokens × {cache.layers} layers ×"
            f" {elements:,} × {self.element} B, {FREE_SHARE:.0%} kept free: {cache.requests} of"
            f" {count} requests at full context"
        )
        return Amount(cache.bytes, text + (", others wait" if cache.requests < count else ""))

    def prefill(self) -> Amount:
        """The largest step's activations, an upper bound of what is alive at one moment."""
        g, t = self.geometry, self.chunk
        attention, mlp = self.widest
        seen, mask = self.context, self.context * t
        mask_text = f"{t:,} × {seen:,}"
        if (cache := self.kv_cache()) is not None:
            # Every step may see the whole cache, and there is one mask for each kind of attention.
            seen = min(seen * self.request.concurrency, cache.tokens)
            rows = max(self.request.prefill_chunk or CHUNK, self.request.concurrency)
            mask = len(g.kv) * rows * (cache.tokens + rows)
            mask_text = f"{len(g.kv)} × {rows:,} × {cache.tokens + rows:,}"
        elements = 6 * t * attention + 3 * t * mlp + mask + 2 * seen * attention
        experts = 2 * min(t * g.top_k * g.hidden * self.element, PART)
        logits = self.request.concurrency * g.vocabulary * 4
        text = (
            f"{self.element} B × ({t:,} tokens × (6 × {attention:,} + 3 × {mlp:,}) + {mask_text}"
            f" mask + {seen:,} × 2 × {attention:,} gathered) + experts {format_bytes(experts)}"
            f" + logits {format_bytes(logits)}"
        )
        return Amount(elements * self.element + experts + logits, text)

    def transfers(self) -> Amount:
        """Buffers of experts being read: as stored, and decoded where that is another type."""
        if self.record is not None:
            return Amount(0, "records are read into their slots")
        if self.parcel is not None:
            return Amount(0, "records are read into the ring")
        stored = self.geometry.bytes_per_expert or self.expert
        each = max(self.parts) * stored // self.expert
        decoded = max(self.parts) if self.geometry.format.name != self.dtype else 0
        return Amount(
            TRANSFERS * (each + decoded),
            f"{TRANSFERS} threads × the largest tensor of an expert, {format_bytes(each)} as stored"
            + (f" and {format_bytes(decoded)} decoded" if decoded else ""),
        )

    def ring(self) -> Amount:
        """The page-locked ring: whole experts, every tensor rounded up to a power of two."""
        count = max(1, self.request.ring // (self.parcel or self.expert))
        text = f"{count} × {format_bytes(self.pinned)}: "
        if self.parcel is not None:
            text += f"a record of {format_bytes(self.parcel)}, rounded up to a power of two"
        else:
            text += (
                f"an expert of {format_bytes(self.expert)} with each tensor rounded up to a power"
                " of two"
            )
        return Amount(count * self.pinned, text)

    @property
    def pinned(self) -> int:
        """Bytes of the ring that one expert takes."""
        return sum(map(rounded, self.parts if self.parcel is None else (self.parcel,)))

    @property
    def pinned_factor(self) -> float:
        """What page-locking one expert takes, over its size."""
        return self.pinned / self.expert

    def landing(self) -> Amount:
        """On a GPU that decodes: records until they are, and one's numbers meanwhile."""
        assert self.parcel is not None
        count = landings(self.parcel, self.request.ring)
        numbers = self.geometry.parameters_per_expert
        return Amount(
            count * self.parcel + 5 * numbers,
            f"{count} × {format_bytes(self.parcel)} + {numbers:,} parameters × (4 + 1 B) decoded",
        )

    def tier(self) -> Amount:
        """All experts as records, and what the host computes of them in a step."""
        assert self.parcel is not None
        g = self.geometry
        outputs = min(self.chunk * g.top_k * g.hidden * 4, PART * 4 // self.element)
        return Amount(
            g.expert_count * self.parcel + 3 * outputs,
            f"{g.expert_count:,} × {format_bytes(self.parcel)} + 3 × {format_bytes(outputs)} of"
            " outputs",
        )

    @property
    def read_by_token(self) -> int:
        """Bytes of weights, experts aside, that computing one step reads."""
        g = self.geometry
        table = 0 if g.tied else g.vocabulary * g.hidden  # of which a token reads one row
        experts = len(g.moe_layers) * g.top_k * g.parameters_per_expert
        dense, blocks = self.dense()
        return (g.active_parameters - experts - table - dense) * self.element + blocks

    def _others(self) -> list[Tensor]:
        blueprint = self.geometry.blueprint
        return [*blueprint.of(Role.OTHER), *blueprint.of(Role.SHARED)]

    @property
    def widest(self) -> tuple[int, int]:
        """Widest output of attention and of what stands between, experts included."""
        rows = {"mlp": [self.geometry.expert_intermediate], "": [self.geometry.hidden]}
        for tensor in self._others():
            if len(tensor.shape) == 2:
                rows["mlp" if "mlp" in tensor.name else ""].append(tensor.shape[0])
        return max(rows[""]), max(rows["mlp"])


def landings(record: int, ring: int) -> int:
    """Rooms on a GPU for records that are being copied: two at least, no more than the ring has."""
    return max(2, min(LANDINGS, ring // record))
