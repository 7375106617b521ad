"""The machine that is planned for: sizes and rates, each with where it was found out.

Facts come from a snapshot of the hardware, gaps from the hardware block of a profile, and what the
user gives wins over both. None is unknown, and nothing is guessed in its place.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from miractl.errors import MiractlError, UsageError
from miractl.probe.devices import Gpu, MemoryUse
from miractl.probe.facts import HardwareSnapshot, Host
from miractl.probe.pci import link_rate
from miractl.probe.visible import visible
from miractl.profiles import Profile
from miractl.units import MIB, format_bytes

WSL_PIN = 512 * MIB  # page-locked memory under WSL2, the least that is reported


@dataclass(frozen=True, slots=True)
class Quantity:
    """Bytes, bytes per second or a count, and its origin: `measured`, `given`, `profile a10`."""

    value: float | None = None
    origin: str = "unknown"

    @property
    def is_known(self) -> bool:
        """Whether there is a value."""
        return self.value is not None

    @property
    def size(self) -> int:
        """The value as whole bytes. Raises MiractlError for an unknown one."""
        if self.value is None:
            raise MiractlError("a size of the machine is not known")
        return int(self.value)


UNKNOWN = Quantity()


@dataclass(frozen=True, slots=True)
class PlanMachine:
    """What a plan needs to know of a machine. Without a GPU the `gpu_*` fields mean nothing."""

    name: str
    device: Literal["cuda", "cpu"]
    unified: bool = False  # the GPU computes in the host's memory: nothing crosses a link
    gpu_memory: Quantity = UNKNOWN
    gpu_free: Quantity = UNKNOWN
    host_memory: Quantity = UNKNOWN  # what this process may have at most
    host_free: Quantity = UNKNOWN
    link: Quantity = UNKNOWN  # bytes per second, host to device, as measured or given
    link_theory: Quantity = UNKNOWN  # of the slot or card on paper, never reached
    disk: Quantity = UNKNOWN
    gpu_rate: Quantity = UNKNOWN  # bytes per second of the GPU reading its memory
    host_rate: Quantity = UNKNOWN
    compute: Quantity = UNKNOWN  # operations per second
    cores: Quantity = UNKNOWN
    pin_budget: int | None = None
    narrow: tuple[int, int] | None = None  # lanes of the slot and of the card, if it has more
    notes: tuple[str, ...] = ()

    @property
    def in_one_memory(self) -> bool:
        """Whether experts are computed where the host keeps everything else."""
        return self.device == "cpu" or self.unified

    @property
    def memory(self) -> Quantity:
        """The memory that the expert slots are in."""
        return self.host_memory if self.in_one_memory else self.gpu_memory

    @property
    def memory_free(self) -> Quantity:
        """What of it can be taken now."""
        return self.host_free if self.in_one_memory else self.gpu_free

    @property
    def knows_memory(self) -> bool:
        """Whether it is known how much memory the slots' place has, and has free."""
        return self.memory.is_known and self.memory_free.is_known


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says of the machine; None is not said. Bytes, bytes per second, operations."""

    gpu_memory: int | None = None
    host_memory: int | None = None
    link: float | None = None
    disk: float | None = None
    gpu_rate: float | None = None
    host_rate: float | None = None
    compute: float | None = None
    cores: int | None = None


def machine_for(
    snapshot: HardwareSnapshot | None,
    profile: Profile | None = None,
    given: Given | None = None,
    device: str = "auto",
) -> PlanMachine:
    """The machine to plan for.

    Args:
        snapshot: this machine, or a recorded one; None to build from the rest alone.
        profile: its hardware stands in where the machine has no GPU, or does not tell its memory.
        given: what wins over everything else.
        device: `auto`, `cpu`, or `cuda:N` in CUDA's order.

    Raises UsageError for a device that is not there.
    """
    given = given or Given()
    machine = _host(snapshot)
    gpu = None if device == "cpu" or snapshot is None else _pick(snapshot, device)
    if given.gpu_memory and device != "cpu":
        machine = _given_gpu(machine, given.gpu_memory)
    elif gpu is not None and snapshot is not None:
        machine = _gpu(machine, snapshot, gpu)
    elif device == "auto" and snapshot is not None and (note := _gpu_note(snapshot)):
        machine = replace(machine, notes=(*machine.notes, note))
    if profile is not None and device != "cpu" and given.gpu_memory is None:
        machine = _with_profile(machine, profile, planned_for=gpu)
    return _with_given(machine, given)


def _host(snapshot: HardwareSnapshot | None) -> PlanMachine:
    machine = PlanMachine(name="this machine, no GPU", device="cpu")
    if snapshot is None:
        return replace(machine, name="a machine without a GPU")
    if (host := snapshot.host) is not None:
        origin = "control group" if host.limit < host.total else "measured"
        machine = replace(
            machine,
            host_memory=Quantity(host.limit, origin),
            host_free=UNKNOWN if host.free is None else Quantity(_free(host), origin),
            pin_budget=host.pin_budget,
        )
    if snapshot.cpu is not None:
        threads = snapshot.cpu.recommended_threads
        machine = replace(machine, cores=Quantity(threads, "measured"))
    if snapshot.disk_rate is not None:
        machine = replace(machine, disk=Quantity(snapshot.disk_rate.rate, "measured"))
    if snapshot.software is not None and snapshot.software.wsl:
        budget = machine.pin_budget
        note = "WSL2: page-locked memory is limited to about 512 MiB, and the link may be slower"
        capped = WSL_PIN if budget is None else min(budget, WSL_PIN)
        machine = replace(machine, pin_budget=capped, notes=(note,))
    return machine


def _free(host: Host) -> int:
    """What can be taken, and what this process has taken already: a plan counts that by itself."""
    return min(host.limit, (host.free or 0) + (host.own or 0))


def _pick(snapshot: HardwareSnapshot, device: str) -> Gpu | None:
    """The GPU that `device` means, None where computing will be on the CPU."""
    found = snapshot.nvml.gpus if snapshot.nvml else ()
    variables = snapshot.software.variables if snapshot.software else {}
    shown = visible(found, variables)
    gpus = [gpu for gpu in (found if shown is None else shown) if not gpu.lost]
    index = int(device[5:]) if device.startswith("cuda:") and device[5:].isdigit() else 0
    if device not in ("auto", "cuda") and not device.startswith("cuda:"):
        raise UsageError(f"unknown device {device!r}", hint="--device auto, cpu or cuda:0")
    if index < len(gpus):
        return gpus[index]
    if device == "auto":
        return None
    raise UsageError(f"{device} is not there: {len(gpus)} GPUs can be used", hint="miractl doctor")


def _gpu_note(snapshot: HardwareSnapshot) -> str | None:
    """A GPU that is there and cannot be used is not the same as none."""
    nvml = snapshot.nvml
    reason = snapshot.problem("nvml") if nvml is None else nvml.message or nvml.state
    if nvml is not None and nvml.gpus:
        reason = "lost, or hidden by CUDA_VISIBLE_DEVICES"
    if not (snapshot.pci or (nvml and nvml.gpus) or nvml is None) or not reason:
        return None
    return f"a GPU cannot be used ({reason}): planned for the CPU; see miractl doctor"


def _memory_of(gpu: Gpu) -> MemoryUse | None:
    """The memory that one process gets: of the first MIG instance where the card is cut."""
    if gpu.mig:
        return next((part.memory for part in gpu.mig_instances if part.memory), None)
    return gpu.memory


def _gpu(machine: PlanMachine, snapshot: HardwareSnapshot, gpu: Gpu) -> PlanMachine:
    memory, load = _memory_of(gpu), snapshot.link_load(gpu)
    notes = [*machine.notes, *_torch_notes(snapshot)]
    if gpu.mig:
        notes.append("MIG: the plan is for the first instance; all instances share one link")
    rate = None if load is None else load.rate
    theory = _theory(snapshot, gpu)
    return replace(
        machine,
        name=gpu.name or "a GPU without a name",
        device="cuda",
        unified=bool(gpu.shares_host_memory),
        gpu_memory=UNKNOWN if memory is None else Quantity(memory.total, "measured"),
        gpu_free=UNKNOWN if memory is None else Quantity(memory.free, "measured"),
        link=UNKNOWN if rate is None else Quantity(rate, "measured"),
        link_theory=UNKNOWN if theory is None else Quantity(theory, "slot, on paper"),
        narrow=_narrow(snapshot, gpu),
        notes=tuple(notes),
    )


def _theory(snapshot: HardwareSnapshot, gpu: Gpu) -> float | None:
    card = snapshot.card(gpu)
    # The ports above a card that a hypervisor passes through are its invention.
    ports = card.ports if card and gpu.virtualization != "passthrough" else ()
    rates = [link_rate(port.max_generation, port.max_width) for port in ports]
    rates.append(link_rate(gpu.link.max_generation, gpu.link.max_width))
    return min((rate for rate in rates if rate is not None), default=None)


def _torch_notes(snapshot: HardwareSnapshot) -> list[str]:
    torch = snapshot.software.torch if snapshot.software else None
    if torch is None or torch.cuda is not None:
        return []
    return [f"torch {torch.version} is built without CUDA: serve would run on the CPU"]


def _narrow(snapshot: HardwareSnapshot, gpu: Gpu) -> tuple[int, int] | None:
    """Lanes of a narrow slot and its card: NVML's maximum is the slot's, sysfs has the card's."""
    card, slot = snapshot.card(gpu), gpu.link.max_width
    own = None if card is None else card.ports[0].max_width
    if own is None or slot is None or slot >= own or gpu.shares_host_memory:
        return None
    return slot, own


def _given_gpu(machine: PlanMachine, memory: int) -> PlanMachine:
    return replace(
        machine,
        name=f"a GPU of {format_bytes(memory)}",
        device="cuda",
        gpu_memory=Quantity(memory, "given"),
        gpu_free=Quantity(memory, "given"),
    )


def _with_profile(machine: PlanMachine, profile: Profile, planned_for: Gpu | None) -> PlanMachine:
    """The profile's card where the machine has none; only its memory where that is not told."""
    hardware, origin = profile.hardware, f"profile {profile.name}"
    if machine.unified or not hardware.memory_bytes:
        return machine
    size = Quantity(min(hardware.memory_bytes), origin)
    if planned_for is not None:
        known = machine.gpu_memory.is_known or not hardware.matches(planned_for.name or "")
        return machine if known else replace(machine, gpu_memory=size, gpu_free=size)
    theory = link_rate(hardware.pcie_generation, hardware.pcie_lanes)
    name = (hardware.gpu_names or (profile.name,))[0].rstrip("*")
    note = f"no GPU here: planned for the card of {origin}; for this machine: --device cpu"
    return replace(
        machine,
        name=name,
        device="cuda",
        gpu_memory=size,
        gpu_free=size,
        link_theory=UNKNOWN if theory is None else Quantity(theory, f"{origin}, on paper"),
        notes=(*machine.notes, note),
    )


def _with_given(machine: PlanMachine, given: Given) -> PlanMachine:
    said: dict[str, Any] = {
        name: Quantity(value, "given")
        for name in ("link", "disk", "gpu_rate", "host_rate", "compute", "cores")
        if (value := getattr(given, name)) is not None
    }
    machine = replace(machine, **said)
    if given.host_memory is None:
        return machine
    size = Quantity(given.host_memory, "given")
    return replace(machine, host_memory=size, host_free=size, pin_budget=given.host_memory // 2)
