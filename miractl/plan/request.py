"""What is asked of a plan: how the model is to be used, and within which limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from miractl.checkpoint.record import Record, why_decoded
from miractl.config import Setting
from miractl.errors import UsageError
from miractl.parameters import PARAMETERS
from miractl.units import MIB

CONTEXT = 8192  # tokens, unless the model ends earlier
HEADROOM = 512 * MIB  # left alone on a GPU, and on a host; of small memories a sixteenth
P95 = 0.050  # seconds a token, below which staging cannot help coarse experts
MB = 10**6  # the unit of dma_buffer_size_mb


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Tokens, bytes and seconds. None stands for what follows from the model or the machine."""

    context: int | None = None
    concurrency: int = 1
    expert_memory: str | None = None  # "8GiB", "40%", or None for all that is left
    kv_memory: int | None = None  # bytes at most for keys and values
    dtype: str | None = None  # BF16, F16 or F32 to compute in
    headroom: int | None = None
    prefill_chunk: int | None = None  # prompt tokens that one step computes
    p95: float = P95
    ring: int = 128 * MB
    max_staged: int = 4
    cap_origin: str = "default"
    prefetch: bool = True
    dense: bool = False  # attention and head as int8
    host_compute: bool = False  # beside a GPU: of experts that all lie in host memory
    sets: int | None = None  # that layers share slots in; None: one a layer

    @property
    def cap(self) -> int:
        """Experts to stage at most, whatever the memory."""
        return self.max_staged if self.prefetch else 0

    @property
    def is_cap_asked(self) -> bool:
        """Whether the user set the cap, and neither a profile nor the default did."""
        return self.cap_origin.startswith(("option", "env ", "file "))

    @property
    def cap_name(self) -> str:
        """What caps, in words."""
        if not self.prefetch:
            return "prefetch being off"
        if self.cap_origin == "default":
            return "the default cap"
        return f"the cap of {self.cap_origin.replace('option', 'the command line')}"

    def window(self, longest: int | None) -> int:
        """Tokens a sequence may have. Raises UsageError for more than the model's `longest`."""
        if self.context is None:
            return min(CONTEXT, longest or CONTEXT)
        if longest is not None and self.context > longest:
            raise UsageError(
                f"a context of {self.context:,} tokens is asked for, and the model ends at"
                f" {longest:,}",
                hint=f"--context {longest}",
            )
        return self.context


def refuse_host(is_beside: bool, record: Record | None, hint: str) -> None:
    """Raise UsageError where the host cannot compute experts of these records beside a GPU.

    `is_beside`: whether there is one; `hint`: what to say where there is none.
    """
    if not is_beside:
        raise UsageError(
            "--host-compute: there is no device that computes beside the host", hint=hint
        )
    if record is None or record.quantized is None:
        raise UsageError(
            "--host-compute needs experts that are stored as int8 or int4",
            hint="miractl pack MODEL --experts int4 -o DIR",
        )
    if (why := why_decoded(record, "cpu")) is not None:
        raise UsageError(f"--host-compute needs the CPU kernels: {why}", hint="--host-compute off")


def request_from(settings: Mapping[str, Setting], **asked: Any) -> PlanRequest:
    """A request with the parameters of a profile, as `resolve_parameters` gives them."""
    values = {name: settings[name].value for name in PARAMETERS if name in settings}
    return PlanRequest(
        ring=values["dma_buffer_size_mb"] * MB,
        max_staged=values["max_staged_experts"],
        cap_origin=settings["max_staged_experts"].origin,
        prefetch=values["prefetch"],
        **asked,
    )
