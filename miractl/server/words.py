"""What a server says when it starts, in plain words. Pure: figures in, lines out."""

import os
import shlex
import shutil
from collections.abc import Mapping
from typing import Any

from miractl.plan.advice import machine_notes
from miractl.plan.planner import Plan
from miractl.telemetry.snapshot import ModelFacts, Snapshot
from miractl.units import format_bytes, format_rate

DEFAULT_URL = "http://127.0.0.1:8000"
# Those that an operator compares between profiles; the others seldom differ.
TOLD = (
    "cache_threshold",
    "heat_decay_factor",
    "prediction_window_ms",
    "max_staged_experts",
    "dma_buffer_size_mb",
    "prediction_mode",
    "prefetch",
)


def profile_line(name: str, parameters: Mapping[str, Any]) -> str:
    """The values that matter: `profile a10: cache_threshold 0.25, ...`."""
    told = ", ".join(f"{key} {_plain(parameters[key])}" for key in TOLD if key in parameters)
    return f"profile {name}: {told}"


def device_line(device: str, asked: str, profile: str) -> str:
    """Where it computes, and what a profile made for a GPU means there."""
    if device != "cpu":
        return f"running on {device}"
    why = "running on the CPU as asked" if asked == "cpu" else "no CUDA device: running on the CPU"
    if profile == "cpu":
        return why
    return (
        f"{why}; of profile {profile} the thresholds, window and staging limits apply,"
        " its GPU memory, pinned buffer and link do not"
    )


def link_line(rate: float, host_compute: str) -> str:
    """What is emulated, and what computes misses meanwhile."""
    return (
        f"emulated link of {format_rate(rate)}: all experts are in RAM, slots and copies are"
        f" imagined, waiting for them is not; host compute {host_compute}"
    )


def host_line(host_compute: str) -> str:
    """What the host computes beside a GPU."""
    return (
        f"host compute {host_compute}: all experts are in the host's memory, too; whether it pays"
        " has not been measured on a GPU"
    )


def model_lines(snapshot: Snapshot, backend: str, context: int, concurrency: int) -> list[str]:
    """The model, and the memory its experts were given."""
    model, cache = snapshot.model, snapshot.cache
    experts = len(model.layers) * model.experts
    share = cache.slots / experts if experts else 0.0
    return [
        f"model {model.id}: {model.family}, {len(model.layers)} MoE layers of {model.experts}"
        f" experts, {model.top_k} at a time; {model.dtype}",
        experts_line(model),
        f"expert memory {format_bytes(cache.budget_bytes)}: {cache.slots_text()} for {experts}"
        f" experts ({share:.0%})",
        f"sets x ways {cache.sets} x {cache.ways}, CPU threads {model.threads}",
        f"requests: {backend}, at most {concurrency} at a time, {context} tokens each",
    ]


def policy_line(policy: str, asked: str | None, missing: str | None) -> str:
    """Who decides which experts stay; `missing` is why there is no library that learns."""
    if asked is None and missing is not None:
        return f"experts stay by policy {policy}, which does not learn: {missing}"
    return f"experts stay by policy {policy}"


def experts_line(model: ModelFacts) -> str:
    """What computes experts, and from what; what to do about it where that is slow."""
    rest = f"; attention and head: {model.dense_format}"
    if model.kernels != "torch":
        return f"experts: {model.expert_format} records, computed as stored ({model.kernels}){rest}"
    note = "" if model.kernels_note is None else f"; {model.kernels_note}"
    return f"experts: {model.expert_format}, computed by torch{rest}{note}"


def plan_notes(plan: Plan) -> list[str]:
    """What the plan has to say before loading: what is odd about the machine, and who waits."""
    cache, count = plan.needs.kv_cache(), plan.needs.request.concurrency
    if cache is None or cache.requests >= count:
        return machine_notes(plan)
    return [
        *machine_notes(plan),
        f"keys and values get {format_bytes(cache.bytes)}: {cache.requests} of {count} requests at"
        f" full context at once, others wait (--kv-memory for more)",
    ]


def memory_line(planned: int, used: int) -> str:
    """What the plan gave the process, and what it has taken."""
    return f"planned {format_bytes(planned)}, using {format_bytes(used)}"


def try_lines(url: str, model_id: str, prompt: str, command: str = "miractl") -> list[str]:
    """What to type next."""
    body = f'{{"model": "{model_id}", "prompt": "{prompt}", "max_tokens": 100, "stream": true}}'
    option = "" if url == DEFAULT_URL else f" --url {url}"
    return [
        "try:",
        f"  curl -N {url}/v1/completions -d {shlex.quote(body)}",
        f"  {command} top{option}",
        f"  {command} heat export{option} -o heat.csv",
    ]


def command_name(argv0: str) -> str:
    """What to type for miractl: its path, where the shell would not find it by its name."""
    if shutil.which("miractl") or not os.access(argv0, os.X_OK):
        return "miractl"
    return shlex.quote(os.path.relpath(argv0))


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
