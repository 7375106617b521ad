"""The ledgers of one model on one machine, all but the expert slots."""

from dataclasses import replace

from miractl.checkpoint.geometry import Geometry
from miractl.errors import MiractlError
from miractl.plan.kv import KV_MEMORY
from miractl.plan.ledger import Ledger, Line, Place
from miractl.plan.machine import PlanMachine, Quantity
from miractl.plan.needs import Amount, Needs
from miractl.plan.request import HEADROOM
from miractl.units import MIB, format_bytes

CUDA_CONTEXT = 512 * MIB  # assumed: 300 to 600 MiB, by the card and the kernels that are loaded
# Interpreter, torch, transformers and the server's own objects: 440 MiB once it has answered, of
# which 100 are pages of libraries that the kernel could give up.
PROCESS = 448 * MIB


def bare_ledger(machine: PlanMachine, headroom: int | None = None) -> Ledger:
    """The memory of the slots with what any model finds taken.

    Raises MiractlError where it is not known how much is free.
    """
    memory, own = machine.memory, machine.in_one_memory
    if not machine.knows_memory:
        option = "--host-memory 16GiB" if own else "--gpu-memory 24GB"
        raise MiractlError(
            f"{machine.name}: how much memory is free is not known", hint=f"say it with {option}"
        )
    lines = [Line("in use", memory.size - machine.memory_free.size, _others(memory))]
    if own:
        lines.append(Line("this program", PROCESS, "assumed: Python, torch, transformers, server"))
    if machine.device == "cuda":
        lines.append(Line("CUDA context", CUDA_CONTEXT, "assumed: kernels and the driver's state"))
    left = min(HEADROOM, memory.size // 16) if headroom is None else headroom
    lines.append(Line("headroom", left, "left alone"))
    where: Place = "device" if machine.device == "cuda" else "host"
    name = "memory" if own else "the GPU's memory"
    return Ledger(where, name, memory.size, memory.origin, tuple(lines))


def base_ledger(needs: Needs, machine: PlanMachine) -> Ledger:
    """The memory of the slots, without them. Raises MiractlError as `bare_ledger`."""
    ledger = bare_ledger(machine, needs.request.headroom)
    lines = [
        _line("weights", needs.weights()),
        _line("prefill", needs.prefill()),
        _line("KV cache", needs.kv()),
    ]
    if needs.parcel is not None:
        lines.append(_line("landing", needs.landing()))
    if machine.in_one_memory:
        on_gpu = machine.device == "cuda"
        lines.append(
            _line("staging ring", needs.ring()) if on_gpu else _line("reading", needs.transfers())
        )
        lines += _tier(needs)
    return replace(ledger, lines=(*ledger.lines, *lines))


def kv_bound(needs: Needs, machine: PlanMachine) -> int:
    """Bytes that keys and values may take where nobody said: KV_MEMORY, less on a small machine.

    Three quarters of what the rest leaves stay for a step's activations and the slots.
    """
    one = replace(needs, kv_bound=0)
    least = needs.geometry.top_k * needs.expert
    room = (base_ledger(one, machine).left or 0) + one.kv().bytes - least
    return max(0, min(KV_MEMORY, room // 4))


def _others(memory: Quantity) -> str:
    """Whether what others take was looked at."""
    if memory.origin in ("measured", "control group"):
        return "measured: driver, system, other programs"
    return "assumed: nothing else runs there"


def _line(name: str, amount: Amount) -> Line:
    return Line(name, amount.bytes, amount.formula)


def _tier(needs: Needs) -> list[Line]:
    return [_line("host tier", needs.tier())] if needs.has_tier else []


def host_ledger(needs: Needs, machine: PlanMachine) -> Ledger:
    """The host beside a GPU: the program, the ring, and what is read from disk ahead of it."""
    total, free = machine.host_memory, machine.host_free
    lines = [Line("this program", PROCESS, "assumed: Python, torch, transformers, server")]
    lines += [_line("staging ring", needs.ring()), _line("reading", needs.transfers())]
    lines += _tier(needs)
    if not total.is_known or not free.is_known:
        return Ledger("host", "the host's memory", None, total.origin, tuple(lines))
    used = Line("in use", total.size - free.size, _others(total))
    return Ledger("host", "the host's memory", total.size, total.origin, (used, *lines))


def disk_ledger(needs: Needs) -> Ledger:
    """The checkpoint, as far as its sizes are known."""
    g = needs.geometry
    lines = []
    for name, size in (("experts", g.expert_bytes), ("rest of the model", g.non_expert_bytes)):
        if size is not None:
            lines.append(Line(name, size, f"as stored, sizes from {_sizes(g)}"))
    return Ledger("disk", "disk", None, "unknown", tuple(lines))


def _sizes(geometry: Geometry) -> str:
    return "config.json" if geometry.sizes_from == "config" else "the headers"


def with_pages(needs: Needs, ledger: Ledger) -> Ledger:
    """Experts that the host's free memory keeps as file pages; given back when it is needed."""
    if ledger.place != "host" or ledger.name == "memory" or ledger.left is None:
        return ledger
    everything = needs.geometry.expert_bytes
    if everything is None or ledger.left <= 0 or needs.has_tier:
        return ledger
    kept = min(everything, ledger.left)
    return ledger.with_line(
        Line(
            "experts, as pages", kept, f"of {format_bytes(everything)} on disk; the kernel's cache"
        )
    )


def on_disk(needs: Needs, machine: PlanMachine, hosts: list[Ledger]) -> float:
    """Share of the experts that no memory but the slots holds."""
    everything = needs.geometry.expert_bytes
    if needs.has_tier:
        return 0.0
    if machine.in_one_memory or everything is None:
        return 1.0
    left = max(0, hosts[0].left or 0)
    return max(0.0, 1 - left / everything)
