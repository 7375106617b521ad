"""Which GPUs CUDA will show, told from CUDA_VISIBLE_DEVICES without asking CUDA.

CUDA numbers the fastest card 0 and says nothing of the rest, NVML counts by PCI address: a number
means the same card for both only under CUDA_DEVICE_ORDER=PCI_BUS_ID, or when there is one card.
"""

from collections.abc import Mapping, Sequence

from miractl.probe.devices import Gpu


def _uuids(gpu: Gpu) -> tuple[str | None, ...]:
    """The UUIDs of a GPU and of its MIG instances."""
    return gpu.uuid, *(instance.uuid for instance in gpu.mig_instances)


def _by_uuid(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    """The GPU, or the parent of the MIG instance, whose UUID begins with `entry`."""
    if entry.startswith("MIG-GPU-"):  # its older form: MIG-<UUID of the GPU>/instance/instance
        entry = entry.removeprefix("MIG-").partition("/")[0]
    found = [gpu for gpu in gpus if any((uuid or "").startswith(entry) for uuid in _uuids(gpu))]
    return found[0] if len(found) == 1 else None


def void_entry(gpus: Sequence[Gpu], variables: Mapping[str, str]) -> str | None:
    """The entry of CUDA_VISIBLE_DEVICES that is no GPU here, at which CUDA stops reading.

    None without such an entry, where the rest is hidden on purpose (by `-1` or nothing), and where
    the GPUs do not tell enough of themselves.
    """
    setting = variables.get("CUDA_VISIBLE_DEVICES", "")
    for entry in (part.strip() for part in setting.split(",")):
        if entry in ("", "-1"):
            return None
        if entry.isdigit():
            if int(entry) >= len(gpus) and not any(gpu.mig for gpu in gpus):
                return entry
        elif not entry.startswith(("GPU-", "MIG-")):
            return entry
        elif _by_uuid(gpus, entry) is None:
            certain = all(None not in _uuids(gpu) for gpu in gpus)
            return entry if certain else None
    return None


def visible(gpus: Sequence[Gpu], variables: Mapping[str, str]) -> tuple[Gpu, ...] | None:
    """The GPUs that CUDA shows, in its order where that can be told.

    None when only CUDA itself could tell. As in CUDA, the first entry that is none ends the list.
    """
    setting = variables.get("CUDA_VISIBLE_DEVICES")
    ordered = sorted(gpus, key=lambda gpu: gpu.address or "")
    if setting is None:
        return tuple(ordered)
    shown: list[Gpu] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.startswith(("GPU-", "MIG-")):
            gpu = _by_uuid(gpus, entry)
        elif entry.isdigit():
            if len(gpus) > 1 and variables.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
                return None
            gpu = ordered[int(entry)] if int(entry) < len(ordered) else None
        else:
            gpu = None
        if gpu is None:
            break
        shown.append(gpu)
    return tuple(shown)
