"""The check of compiled packages that were built against one torch and meet another."""

import re

from miractl.doctor.check import Check, Finding, Remedy, Status, Subject, ok, skip, unknown
from miractl.probe.facts import Software
from miractl.probe.software import EXTENSIONS


def _release(version: str) -> list[str]:
    """`2.8.0+cu126` as 2, 8, 0."""
    return version.partition("+")[0].split(".")


def built_for(software: Software, name: str) -> str | None:
    """The torch that a package says it was built for: in its requirements, or in its version."""
    local = re.search(r"\+.*torch(\d+\.\d+)", software.packages[name])
    return software.torch_builds.get(name) or (local and local[1])


def _other_cuda(software: Software, name: str) -> str | None:
    """What a package was built with, if torch was built with something else: `CUDA 12.6`."""
    local, torch = software.packages[name].partition("+")[2], software.torch
    tag = re.match(r"cpu$|cu(\d\d)(\d*)", local)
    if torch is None or torch.hip or tag is None:
        return None
    if tag[1] is None:
        return "no CUDA" if torch.cuda else None
    cuda = f"{tag[1]}.{tag[2]}" if tag[2] else tag[1]
    same = torch.cuda is not None and (torch.cuda == cuda or torch.cuda.startswith(f"{cuda}."))
    return None if same else f"CUDA {cuda}"


def _fault(software: Software, name: str) -> str | None:
    """What is wrong with a package, as far as it tells."""
    built, package = built_for(software, name), f"{name} {software.packages[name]}"
    if built is not None:
        wanted = _release(built)
        if _release(software.packages["torch"])[: len(wanted)] != wanted:
            return f"{package} is built for torch {built}"
    other = _other_cuda(software, name)
    return other and f"{package} is built with {other}"


def _extensions(subject: Subject) -> Finding:
    software = subject.software
    torch = software.packages.get("torch")
    present = [name for name in EXTENSIONS if name in software.packages]
    if torch is None or not present:
        return skip(
            f"none is installed of {', '.join(EXTENSIONS)}" if torch else "there is no torch"
        )
    faults = {name: fault for name in present if (fault := _fault(software, name))}
    if faults:
        remedy = Remedy(
            "Take out what miractl does not need, or install builds for this torch:",
            (f"pip uninstall -y {' '.join(faults)}",),
        )
        text = f"{'; '.join(faults.values())}; torch is {torch}"
        if software.torch is not None and software.torch.cuda:
            text += f", with CUDA {software.torch.cuda}"
        return Finding(Status.WARN, text, ", ".join(faults), f"built for torch {torch}", remedy)
    silent = [name for name in present if built_for(software, name) is None]
    if silent:
        return unknown(f"{', '.join(silent)}: not said for which torch; it is {torch}")
    return ok(f"{', '.join(present)}: built for torch {torch}")


CHECKS = (
    Check(
        id="py.extensions",
        title="Packages compiled against torch",
        category="software",
        severity="warning",
        run=_extensions,
        about="transformers imports torchvision where it is installed; a build for another torch "
        "or CUDA ends that import, and the start of `serve` with it. flash-attn, xformers and "
        "torchaudio are in the way of those who ask for them. miractl needs none: attention is "
        "torch's own. Read from the packages' metadata; nothing is imported.",
        source="requirements and versions in the metadata of the installed packages",
        remedy=Remedy("Take out what is not needed:", ("pip uninstall -y flash-attn",)),
    ),
)
