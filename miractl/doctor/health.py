"""Checks of what a card says of its own health: memory errors, spare rows, persistence."""

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

_ABSENT = ("NotSupported", "FunctionNotFound")


def _no_answer(gpu: Gpu, field: str, what: str) -> Finding:
    """A card without the feature is no question; one that does not answer is unknown."""
    reason = gpu.errors.get(field, "no answer")
    if reason in _ABSENT:
        return skip(f"the device does not tell its {what}")
    return unknown(f"{what} n/a (NVML: {reason})")


def _ecc(subject: Subject, gpu: Gpu) -> Finding:
    errors = gpu.ecc_uncorrected
    if errors is None:
        return _no_answer(gpu, "ecc_uncorrected", "memory errors")
    if errors:
        text = f"uncorrected memory errors since the driver was loaded: {errors}"
        return Finding(Status.FAIL, text, str(errors), "0")
    return ok("no uncorrected memory error since the driver was loaded", "0", "0")


def _remap(subject: Subject, gpu: Gpu) -> Finding:
    rows = gpu.remap
    if rows is None:
        return _no_answer(gpu, "remap", "remapped rows")
    count = f"rows replaced: {rows.corrected + rows.uncorrected}"
    if rows.failed:
        return Finding(Status.WARN, f"{count}, and there is no spare row left", "failed", "spares")
    if rows.pending:
        text = f"{count}, and a replacement waits for a reset of the card"
        return Finding(Status.WARN, text, "pending", "nothing pending")
    return ok(count if rows.corrected + rows.uncorrected else "no row had to be replaced")


def _persistence(subject: Subject, gpu: Gpu) -> Finding:
    if gpu.persistence is None:
        return _no_answer(gpu, "persistence", "persistence mode")
    if gpu.persistence:
        return ok("the driver stays loaded", "on", "on")
    if gpu.graphics:
        return ok("off, but a display keeps the driver loaded", "off")
    text = "persistence mode is off: without a client the driver unloads, and each start waits"
    return Finding(Status.WARN, text, "off", "on")


_NEEDS = ("driver.nvml",)
CHECKS = (
    Check(
        id="gpu.ecc",
        title="memory errors",
        category="gpu",
        severity="failure",
        needs=_NEEDS,
        run=each_gpu(_ecc),
        about="Errors that ECC saw and could not mend, since the driver was loaded: weights in "
        "such memory are wrong. Cards without ECC do not count them.",
        source="nvml.h, nvmlDeviceGetTotalEccErrors; NVIDIA DCGM, nvvs/src/Software.cpp",
        remedy=Remedy(
            "Read which kind, reset the card, and have it replaced if they come back:",
            ("nvidia-smi -q -d ECC", "sudo nvidia-smi --gpu-reset"),
        ),
    ),
    Check(
        id="gpu.remap",
        title="spare rows of memory",
        category="gpu",
        severity="warning",
        needs=_NEEDS,
        run=each_gpu(_remap),
        about="From Ampere on, rows of memory with errors are replaced by spare ones at the next "
        "reset. A replacement that waits, or a card that has no spare row left, is a warning.",
        source="nvml.h, nvmlDeviceGetRemappedRows",
        remedy=Remedy(
            "Reset the card; have it replaced if no row is left:",
            ("nvidia-smi -q -d ROW_REMAPPER", "sudo nvidia-smi --gpu-reset"),
        ),
    ),
    Check(
        id="gpu.persistence",
        title="persistence mode",
        category="gpu",
        severity="warning",
        needs=_NEEDS,
        run=each_gpu(_persistence),
        about="Without it the driver unloads when the last client ends, and the next start waits "
        "for it, a second or more a card. A display counts as a client.",
        source="nvidia-smi manual, Persistence Mode; NVIDIA DCGM, nvvs/src/Software.cpp",
        remedy=Remedy(
            "Keep it loaded:",
            ("sudo systemctl enable --now nvidia-persistenced", "sudo nvidia-smi -pm 1"),
        ),
    ),
)
