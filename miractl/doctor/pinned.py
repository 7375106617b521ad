"""Check of page-locked memory: what the staging ring takes of it, and what can be had."""

from miractl.doctor.check import Check, Finding, Remedy, Status, Subject, ok, skip, unknown
from miractl.parameters import PARAMETERS
from miractl.probe.devices import Load
from miractl.probe.facts import Host
from miractl.units import MIB, format_bytes

RING = "dma_buffer_size_mb"
WSL_CAP = 512 * MIB  # the least that is reported


def rounded(size: int) -> int:
    """Bytes that page-locking `size` takes: torch rounds every piece up to a power of two."""
    return 1 << (size - 1).bit_length() if size > 0 else 0


def _ring(subject: Subject) -> tuple[int, int]:
    """Megabytes of the staging ring, and the bytes it takes at most once its pieces are rounded."""
    values = subject.profile.values if subject.profile else {}
    megabytes = int(values.get(RING, PARAMETERS[RING].default))
    return megabytes, 2 * megabytes * 10**6


def _limit(host: Host, capped: bool) -> tuple[int | None, str]:
    """Bytes to page-lock at most, and why; unknown where a group hides what it uses."""
    budget = host.pin_budget
    if capped and (budget is None or budget > WSL_CAP):
        return WSL_CAP, "about what WSL2 allows"
    return budget, "half of what is free"


def _tried(load: Load) -> str:
    """What page-locking showed: the largest piece that worked, and the first that did not."""
    refused = next((trial for trial in load.pins if trial.error), None)
    told = f"a piece of {format_bytes(load.largest_pin)} could be page-locked"
    if refused is not None:
        told += f", one of {format_bytes(refused.size)} not ({refused.error})"
    return told


def _pinned(subject: Subject) -> Finding:
    gpus = subject.nvml.gpus
    if gpus and all(gpu.shares_host_memory for gpu in gpus):
        return skip("unified or coherent memory: nothing is staged")
    megabytes, need = _ring(subject)
    load = subject.machine.load
    tried = load is not None and bool(load.pins)
    limit, why = _limit(subject.host, bool(subject.software.wsl) and not tried)
    text = f"the ring of {megabytes} MB, rounded up, takes at most {format_bytes(need)}"
    if load is not None and load.pins:
        text += f"; {_tried(load)}"
        if any(trial.error for trial in load.pins) and (load.largest_pin or 0) < need:
            return Finding(Status.WARN, text, format_bytes(load.largest_pin), format_bytes(need))
    if limit is None:
        return unknown(f"{text}; a control group hides how much memory is free")
    text += f"; limit {format_bytes(limit)}, {why}"
    if need > limit:
        return Finding(Status.WARN, text, format_bytes(limit), format_bytes(need))
    return ok(text, format_bytes(limit), format_bytes(need))


CHECKS = (
    Check(
        id="host.pinned",
        title="page-locked memory",
        category="host",
        severity="warning",
        needs=("driver.nvml",),
        run=_pinned,
        about="Copies only overlap computing from page-locked memory, which is taken from the "
        "host for good. The staging ring's pieces are rounded up to powers of two, so it takes "
        "less than twice its size; it may have half of what is free, and 512 MiB under WSL2. With "
        "`--load`, pieces of 64 MiB, 256 MiB and 1 GiB are tried in a child process, never more "
        "than that half. RLIMIT_MEMLOCK does not count: the driver does not use mlock(2).",
        source="CUDA runtime, cudaMallocHost; CUDA on WSL user guide, limitations",
        remedy=Remedy(
            "Make the ring smaller:",
            ("miractl serve --dma-buffer-size-mb 32",),
        ),
    ),
)
