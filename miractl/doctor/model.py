"""Checks of a checkpoint: are its files whole, and does it fit."""

from miractl.doctor.check import Check, Finding, Remedy, Status, Subject, ok, skip, unknown
from miractl.units import format_bytes


def _files(subject: Subject) -> Finding:
    checkpoint = subject.checkpoint
    if checkpoint is None:
        return skip("no model given")
    if not checkpoint.faults:
        count = f"{checkpoint.files} file" + ("s" if checkpoint.files != 1 else "")
        return ok(f"{checkpoint.name}: {count}, whole")
    first, *others = checkpoint.faults
    more = f" (and {len(others)} more)" if others else ""
    status = Status.FAIL if first.fatal else Status.WARN
    remedy = Remedy(f"{first.remedy[0].upper()}{first.remedy[1:]}.") if first.remedy else None
    return Finding(status, first.text + more, "faulty", "whole", remedy)


def _device_free(subject: Subject) -> int | None:
    """Free memory of the roomiest GPU with a memory of its own; None without one."""
    nvml = subject.machine.nvml
    gpus = nvml.gpus if nvml else ()
    rooms = [gpu.memory.free for gpu in gpus if gpu.memory and not gpu.shares_host_memory]
    return max(rooms, default=None)


def _memory(subject: Subject) -> Finding:
    checkpoint = subject.checkpoint
    if checkpoint is None:
        return skip("no model given")
    if any(fault.fatal for fault in checkpoint.faults):
        return skip("needs model.files")
    resident, experts = checkpoint.resident_bytes, checkpoint.expert_bytes
    layer, host = checkpoint.layer_bytes, subject.host.free
    if resident is None or experts is None or layer is None:
        return unknown("the files do not tell how large the model is")
    if host is None:
        return unknown("a control group limits memory, but hides how much of it is used")
    device = _device_free(subject)
    need, room = resident + layer, host if device is None else device
    where = "memory" if device is None else "the GPU's memory"
    text = f"at least {format_bytes(need)} must fit {where}, {format_bytes(room)} is free"
    if need > room:
        return Finding(Status.FAIL, text, format_bytes(room), format_bytes(need))
    left = host - need if device is None else host
    text += f"; all experts take {format_bytes(experts)}, {format_bytes(left)} is left for them"
    if experts > left:
        text += ": some stay on disk"
        return Finding(Status.WARN, text, format_bytes(left), format_bytes(experts))
    return ok(text, format_bytes(left), format_bytes(experts))


CHECKS = (
    Check(
        id="model.files",
        title="the model's files are whole",
        category="model",
        severity="failure",
        run=_files,
        only_with="model",
        about="Reads config.json, the index and the header of every file, and no weight: missing "
        "files and tensors, files cut short, pointers of Git LFS in place of files, shapes and "
        "counts that contradict the config, formats that are not read.",
        source="the checkpoint's own files",
        remedy=Remedy("Get the model again."),
    ),
    Check(
        id="model.memory",
        title="the model fits",
        category="model",
        severity="failure",
        run=_memory,
        only_with="model",
        about="What must be in memory, everything but the routed experts and those that one token "
        "uses in one layer, against what is free on the GPU, or without one on the host. Experts "
        "that fit nowhere are read from disk: a warning. Sizes as stored; the cache of keys and "
        "values comes on top.",
        source="headers of the safetensors files; see host.ram and gpu.memory",
        remedy=Remedy("Free memory, or take a smaller model or a quantised one of it."),
    ),
)
