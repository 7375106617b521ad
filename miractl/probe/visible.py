"""Which GPUs CUDA will show, told from CUDA_VISIBLE_DEVICES without asking CUDA.

CUDA numbers the fastest card 0 and says nothing of the rest, NVML counts by PCI address: a number
means the same card for both only under CUDA_DEVICE_ORDER=PCI_BUS_ID, or when there is one card.
"""

from collections.abc import Mapping, Sequence

from miractl.probe.facts import Gpu


def _by_uuid(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    """The GPU, or the parent of the MIG instance, whose UUID begins with `entry`."""
    found = [
        gpu
        for gpu in gpus
        if any(
            (uuid or "").startswith(entry)
            for uuid in (gpu.uuid, *(instance.uuid for instance in gpu.mig_instances))
        )
    ]
    return found[0] if len(found) == 1 else None


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
