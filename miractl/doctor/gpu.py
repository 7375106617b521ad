"""Checks of each GPU: memory, sharing and clocks."""

from collections.abc import Iterator

from miractl.doctor.check import (
    Check,
    Finding,
    Remedy,
    Status,
    Subject,
    each_gpu,
    ok,
    skip,
    unknown,
)
from miractl.probe.devices import Gpu
from miractl.probe.visible import visible, void_entry
from miractl.units import format_bytes

NEARLY_FULL = 0.10  # share of memory that is free
SLOWED = ("hw_thermal", "hw_power_brake", "hw_slowdown", "sw_thermal")
HARDWARE_LIMITS = ("hw_thermal", "hw_power_brake")


def is_idle(gpu: Gpu) -> bool | None:
    """Whether nothing runs on the GPU, so that clocks and link may be asleep. None: not known."""
    if gpu.utilization is not None:
        return gpu.utilization == 0
    asleep = (gpu.performance_state or 0) >= 8 or "gpu_idle" in (gpu.clock_events or ())
    return True if asleep else None


def _reason(gpu: Gpu, field: str) -> str:
    return f"NVML: {gpu.errors.get(field, 'no answer')}"


def _count(subject: Subject) -> Finding:
    gpus, variables = subject.nvml.gpus, subject.software.variables
    setting, here = variables.get("CUDA_VISIBLE_DEVICES"), len(gpus)
    shown, void = visible(gpus, variables), void_entry(gpus, variables)
    set_to = f"CUDA_VISIBLE_DEVICES={setting!r}"
    if shown == ():
        why = f": {void!r} is no GPU here" if void else ""
        text = f"{set_to} hides every GPU{why}: CPU mode"
        return Finding(Status.WARN, text, "no GPU visible", "1 GPU or more")
    if void is not None:
        text = f"{set_to}: {void!r} is no GPU here, and CUDA reads no further"
        return Finding(Status.WARN, text, void, f"one of {here} GPUs")
    if setting is None:
        return ok("one GPU" if here == 1 else f"{here} GPUs, none hidden", str(here))
    count = len(setting.split(",")) if shown is None else len(shown)
    return ok(f"{count} of {here} shown by {set_to}", str(count), str(here))


def _index(subject: Subject) -> Finding:
    gpus, variables = subject.nvml.gpus, subject.software.variables
    shown = visible(gpus, variables)
    if shown == ():
        return skip("CUDA shows no GPU: see gpu.count")
    if shown is None and len({gpu.name for gpu in gpus}) > 1:
        text = "CUDA_VISIBLE_DEVICES counts unlike GPUs, and CUDA's order need not be NVML's"
        return Finding(Status.WARN, text, variables["CUDA_VISIBLE_DEVICES"], "UUIDs or PCI order")
    if len(gpus) == 1 or variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return ok("CUDA and NVML count alike")
    return ok(f"{len(gpus)} GPUs; CUDA's order need not be NVML's, so name them by UUID")


def _instances(gpu: Gpu) -> str:
    sizes = [format_bytes(i.memory.total) if i.memory else "n/a" for i in gpu.mig_instances]
    return ", ".join(sizes) or "none created"


def _users(gpu: Gpu) -> Iterator[str]:
    """Who else is there: `2 compute processes`, `1 graphics process (310 MiB)`."""
    for kind, count in (("compute", gpu.processes), ("graphics", len(gpu.graphics or ()))):
        if count:
            sizes = gpu.graphics if kind == "graphics" and gpu.graphics else (None,)
            known = [size for size in sizes if size is not None]
            held = f" ({format_bytes(sum(known))})" if len(known) == len(sizes) else ""
            yield f"{count} {kind} process{'es' if count > 1 else ''}{held}"


def _memory(subject: Subject, gpu: Gpu) -> Finding:
    if gpu.lost:
        text = "GPU is lost: it no longer answers on the bus"
        remedy = Remedy("Read why, then reset the card or reboot:", ("sudo dmesg | grep -i xid",))
        return Finding(Status.FAIL, text, "GpuIsLost", "an answer", remedy)
    if gpu.mig:
        return ok(f"MIG instances of {_instances(gpu)}")
    if gpu.memory is None:
        if gpu.shares_host_memory:
            return skip("unified memory: see host.ram")
        return unknown(f"memory is n/a ({_reason(gpu, 'memory')})")
    free, total = format_bytes(gpu.memory.free), format_bytes(gpu.memory.total)
    text = ", ".join([f"{free} free of {total}", *_users(gpu)])
    if gpu.memory.free < NEARLY_FULL * gpu.memory.total:
        return Finding(
            Status.WARN, f"nearly full: {text}", free, f"more than {NEARLY_FULL:.0%} free"
        )
    return ok(text, free)


def _unified(subject: Subject, gpu: Gpu) -> Finding:
    shares = gpu.shares_host_memory
    if shares is None:
        return unknown(f"addressing is n/a ({_reason(gpu, 'addressing')})")
    if not shares:
        return ok("memory of its own: experts are staged over the link")
    if gpu.memory is None:
        text = "unified: its memory is the host's, so there is no link to stage experts over"
        return ok(text, "no memory of its own")
    text = "coherent with the host's memory (ATS): copies do not go over PCIe"
    return ok(text, gpu.addressing)


def _mig(subject: Subject, gpu: Gpu) -> Finding:
    if gpu.mig is None:
        if gpu.errors.get("mig") in ("NotSupported", "FunctionNotFound"):
            return skip("the device has no MIG")
        return unknown(f"MIG mode is n/a ({_reason(gpu, 'mig')})")
    if not gpu.mig:
        return ok("MIG is off: the whole card and its whole link")
    text = f"MIG is on (instances: {len(gpu.mig_instances)}): they share one link"
    return Finding(Status.WARN, text, "MIG on", "MIG off")


def _vgpu(subject: Subject, gpu: Gpu) -> Finding:
    mode = gpu.virtualization
    if mode is None:
        return unknown(f"virtualisation is n/a ({_reason(gpu, 'virtualization')})")
    if mode == "vgpu":
        return ok("vGPU: PCIe counters and the real link are hidden by the host", mode)
    words = {"none": "bare metal", "passthrough": "whole card passed through to a virtual machine"}
    return ok(words.get(mode, f"host of virtual GPUs ({mode})"), mode)


def _clock(subject: Subject, gpu: Gpu) -> Finding:
    if gpu.clock_events is None:
        return unknown(f"clock events are n/a ({_reason(gpu, 'clock_events')})")
    slowed = [event for event in SLOWED if event in gpu.clock_events]
    if not slowed:
        return ok(f"nothing slows it down ({', '.join(gpu.clock_events) or 'full clock'})")
    told = ", ".join(slowed)
    if is_idle(gpu) and any(event in HARDWARE_LIMITS for event in slowed):
        return Finding(Status.WARN, f"slowed down by {told} though idle", told, "gpu_idle")
    again = Remedy("Ask again in a minute:", ("miractl doctor gpu.clock",))
    return unknown(f"slowed down by {told} at this moment, which may pass", told, again)


_NEEDS = ("driver.nvml",)
CHECKS = (
    Check(
        id="gpu.count",
        title="how many GPUs CUDA shows",
        category="gpu",
        severity="warning",
        needs=_NEEDS,
        run=_count,
        about="CUDA_VISIBLE_DEVICES can hide GPUs. An entry that names none is no error: CUDA "
        "silently stops there and shows only those before it, perhaps nothing.",
        source="CUDA programming guide, environment variables",
        remedy=Remedy("Unless that is meant:", ("unset CUDA_VISIBLE_DEVICES",)),
    ),
    Check(
        id="gpu.index",
        title="which GPU is which",
        category="gpu",
        severity="warning",
        needs=_NEEDS,
        run=_index,
        about="CUDA puts the fastest card first, NVML goes by PCI address, so a number can mean "
        "two cards. A UUID is always right; a list of numbers in CUDA_VISIBLE_DEVICES is only "
        "certain under CUDA_DEVICE_ORDER=PCI_BUS_ID.",
        source="nvml.h, nvmlDeviceGetHandleByIndex; CUDA programming guide, environment variables",
        remedy=Remedy("Let CUDA count as NVML does:", ("export CUDA_DEVICE_ORDER=PCI_BUS_ID",)),
    ),
    Check(
        id="gpu.memory",
        title="device memory",
        category="gpu",
        severity="failure",
        needs=_NEEDS,
        run=each_gpu(_memory),
        about="Free and total memory of the device, and who else is there, a desktop included. "
        "Less than a tenth free is a warning. Memory "
        "that the host and the GPU share is not counted here; a card that is lost is a failure.",
        source="nvml.h, nvmlDeviceGetMemoryInfo_v2",
        remedy=Remedy("See who holds it:", ("nvidia-smi",)),
    ),
    Check(
        id="gpu.unified",
        title="whose memory it is",
        category="gpu",
        severity="info",
        needs=_NEEDS,
        run=each_gpu(_unified),
        about="Integrated GPUs (Jetson, GB10) have no memory of their own, and NVML answers "
        "NotSupported; GH200 addresses the host's memory over NVLink-C2C. There, staging over PCIe "
        "has no meaning, and free memory is MemAvailable of the host.",
        source="nvml.h, nvmlDeviceGetMemoryInfo and nvmlDeviceGetAddressingMode",
    ),
    Check(
        id="gpu.mig",
        title="MIG",
        category="gpu",
        severity="warning",
        needs=_NEEDS,
        run=each_gpu(_mig),
        about="Instances of one card share its PCIe link, so no instance can count on all of it. "
        "Utilisation is not supported under MIG.",
        source="nvml.h, nvmlDeviceGetMigMode and nvmlDeviceGetUtilizationRates",
        remedy=Remedy(
            "Plan with a part of the link, or turn MIG off:",
            ("miractl serve --max-staged-experts 1", "sudo nvidia-smi -mig 0"),
        ),
    ),
    Check(
        id="gpu.vgpu",
        title="virtualisation",
        category="gpu",
        severity="info",
        needs=_NEEDS,
        run=each_gpu(_vgpu),
        about="A virtual GPU hides PCIe counters and the real link; a card passed through does "
        "not, but the bridges above it are the hypervisor's invention.",
        source="nvml.h, nvmlDeviceGetVirtualizationMode and nvmlDeviceGetPcieThroughput",
    ),
    Check(
        id="gpu.clock",
        title="clocks",
        category="gpu",
        severity="warning",
        needs=_NEEDS,
        run=each_gpu(_clock),
        about="Heat or power holding the clocks of an idle card down is a warning; under load it "
        "may pass, and is unknown. A power cap under load is normal.",
        source="nvml.h, nvmlDeviceGetCurrentClocksEventReasons",
        remedy=Remedy("See temperatures and limits:", ("nvidia-smi -q -d TEMPERATURE,POWER",)),
    ),
)
