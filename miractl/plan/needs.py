"""What a model needs in memory while it serves: bytes, each with the words it is derived by."""

import math
from dataclasses import dataclass

from miractl.checkpoint.blueprint import Role, Tensor
from miractl.checkpoint.formats import ELEMENT_BYTES
from miractl.checkpoint.geometry import Geometry
from miractl.checkpoint.layers import CHUNKED, FULL, SLIDING
from miractl.doctor.pinned import rounded
from miractl.plan.request import PlanRequest
from miractl.units import MIB, format_bytes

PAGE = 256  # tokens of one page of the KV cache
FREE_SHARE = 0.15  # of its pages, kept free so that a running request can grow
CHUNK = 512  # prompt tokens of one step, where requests are batched
PART = 64 * MIB  # bound of the experts' outputs before they are summed
TRANSFERS = 3  # two threads that read ahead, and the one that waits


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

    @property
    def element(self) -> int:
        """Bytes of one number."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def expert(self) -> int:
        """Bytes of one expert in a slot."""
        return self.geometry.expert_bytes_as(self.dtype)

    @property
    def parts(self) -> tuple[int, ...]:
        """Bytes of the tensors that one slot consists of: gate and up are one, biases follow."""
        sizes = {n: math.prod(shape) for n, shape in self.geometry.expert_shapes.items()}
        for suffix in ("", "_bias"):
            gate = sizes.pop(f"gate_proj{suffix}", None)
            if gate is not None:
                sizes[f"up_proj{suffix}"] += gate
        return tuple(size * self.element for size in sizes.values())

    @property
    def is_batched(self) -> bool:
        """Whether requests share steps: the rest of the families runs one request at a time.

        These keep a fixed state, or a latent that is expanded to keys and values in every step.
        """
        mixers = set(self.geometry.blueprint.mixers)
        latent = any(tensor.name.endswith("kv_b_proj.weight") for tensor in self._others())
        return mixers <= {FULL, SLIDING, CHUNKED, "mlp", "moe"} and not latent

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
        """Everything but the routed experts."""
        count = self.geometry.non_expert_parameters
        return Amount(count * self.element, f"{count:,} parameters × {self.element} B")

    def kv_of_one(self) -> int:
        """Bytes that the cache must have for each request of full context."""
        tokens = self.paged if self.is_batched else self.context
        held = self.geometry.kv_bytes(tokens, self.element)
        return math.ceil(held / (1 - FREE_SHARE)) if self.is_batched else held

    def kv(self) -> Amount:
        """Keys and values of all requests at full context."""
        count, tokens = self.request.concurrency, self.context
        groups = [
            f"{g.layers} layers × {g.elements:,} × {self.element} B"
            + (f" for the last {g.window:,}" if g.window and g.window < tokens else "")
            for g in self.geometry.kv
        ]
        text = f"{count} × {tokens:,} tokens × ({' + '.join(groups) or 'nothing'})"
        if self.is_batched:
            text = text.replace(f"{tokens:,}", f"{self.paged:,}", 1)
            text += f"; whole pages of {PAGE} and one more, {FREE_SHARE:.0%} kept free"
        return Amount(count * self.kv_of_one(), text)

    def prefill(self) -> Amount:
        """The largest step's activations, an upper bound of what is alive at one moment."""
        g, t, c = self.geometry, self.chunk, self.context
        attention, mlp = self.widest
        seen = c * (self.request.concurrency if self.is_batched else 1)
        elements = 6 * t * attention + 3 * t * mlp + t * seen + 2 * seen * attention
        experts = 2 * min(t * g.top_k * g.hidden * self.element, PART)
        logits = self.request.concurrency * g.vocabulary * 4
        text = (
            f"{t:,} tokens × {self.element} B × (6 × {attention:,} + 3 × {mlp:,} + {seen:,} mask)"
            f" + {seen:,} × 2 × {attention:,} × {self.element} B gathered + experts"
            f" {format_bytes(experts)} + logits {format_bytes(logits)}"
        )
        return Amount(elements * self.element + experts + logits, text)

    def transfers(self) -> Amount:
        """Buffers of experts being read: as stored, and decoded where that is another type."""
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
        count = max(1, self.request.ring // self.expert)
        each = sum(map(rounded, self.parts))
        return Amount(
            count * each,
            f"{count} × {format_bytes(each)}: an expert of {format_bytes(self.expert)} with each"
            " tensor rounded up to a power of two",
        )

    @property
    def pinned_factor(self) -> float:
        """What page-locking one expert takes, over its size."""
        return sum(map(rounded, self.parts)) / self.expert

    @property
    def read_by_token(self) -> int:
        """Bytes of weights, experts aside, that computing one step reads."""
        g = self.geometry
        table = 0 if g.tied else g.vocabulary * g.hidden  # of which a token reads one row
        experts = len(g.moe_layers) * g.top_k * g.parameters_per_expert
        return (g.active_parameters - experts - table) * self.element

    @property
    def paged(self) -> int:
        """Tokens of the pages of one request: what the context fills, and one more."""
        return (math.ceil(self.context / PAGE) + 1) * PAGE

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
