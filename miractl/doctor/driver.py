"""Checks of the NVIDIA driver: does it answer, and does it run the torch that is installed."""

from miractl.doctor.check import Check, Finding, Remedy, Status, Subject, ok, skip, unknown
from miractl.doctor.software import torch_install, version_pair
from miractl.probe.devices import Nvml

# The oldest driver branch for each CUDA major version, and its successors run it too.
DRIVER_FLOORS = {13: 580, 12: 525, 11: 450}

_CPU_MODE = Remedy("Nothing to mend, if there is no NVIDIA GPU:", ("miractl serve --device cpu",))
_INSTALL = Remedy(
    "To use the card, install its driver (this is Ubuntu's command):",
    ("sudo apt install nvidia-driver-580",),
)
_CONTAINER = Remedy(
    "Give the container the library: it comes with the capability `utility`:",
    ("docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",),
)
_REMEDIES = {
    "DriverNotLoaded": Remedy(
        "Load the kernel module, and read why if it will not:",
        ("sudo modprobe nvidia", "sudo dmesg | grep -i nvrm"),
    ),
    "LibRmVersionMismatch": Remedy(
        "The driver was upgraded under a running kernel module; reboot, or reload it:",
        ("sudo reboot", "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia"),
    ),
    "NoPermission": Remedy(
        "The device files refuse this user, or the container was started without them:",
        ("ls -l /dev/nvidia*", *_CONTAINER.commands),
    ),
    "BindingMissing": Remedy("Install the binding:", ("pip install -U nvidia-ml-py",)),
}
_WORDS = {
    "DriverNotLoaded": "the NVIDIA library is here, but the kernel module is not loaded",
    "LibRmVersionMismatch": "driver/library version mismatch (reboot or reload the module)",
    "NoPermission": "NVML may not open the devices (insufficient permissions)",
    "BindingMissing": "NVML cannot be asked: the Python binding nvidia-ml-py is missing",
}


def _no_library(subject: Subject) -> Finding:
    """Without NVML: no driver at all is a warning; a loaded one without its library is a fault."""
    software, cards = subject.software, subject.machine.pci or ()
    if software.kernel_driver and software.container != "none":
        text = (
            f"kernel driver {software.kernel_driver} is loaded, but its NVML library is not in here"
        )
        return Finding(Status.FAIL, text, "LibraryNotFound", "NVML starts", _CONTAINER)
    if software.kernel_driver:
        text = f"kernel driver {software.kernel_driver} is loaded, but its NVML library is missing"
        remedy = Remedy("Install the user-space part:", ("sudo apt install libnvidia-compute-580",))
        return Finding(Status.FAIL, text, "LibraryNotFound", "NVML starts", remedy)
    if cards:
        where = ", ".join(card.address for card in cards)
        text = f"an NVIDIA card ({where}) but no NVIDIA driver: CPU mode"
        return Finding(Status.WARN, text, "LibraryNotFound", "NVML starts", _INSTALL)
    text = "no NVIDIA driver (NVML library not found): CPU mode"
    return Finding(Status.WARN, text, "LibraryNotFound", "NVML starts", _CPU_MODE)


def _broken(subject: Subject, nvml: Nvml) -> Finding:
    if nvml.state == "LibraryNotFound":
        return _no_library(subject)
    text = _WORDS.get(nvml.state, f"NVML does not start: {nvml.message or nvml.state}")
    software = subject.machine.software
    if nvml.state == "LibRmVersionMismatch" and software and software.kernel_driver:
        text += f"; the loaded module is {software.kernel_driver}"
    no_card = nvml.state == "DriverNotLoaded" and subject.machine.pci == ()
    if no_card:
        text += ", and there is no NVIDIA card: CPU mode"
    status = Status.WARN if no_card or nvml.state == "BindingMissing" else Status.FAIL
    return Finding(status, text, nvml.state, "NVML starts", _REMEDIES.get(nvml.state))


def _nvml(subject: Subject) -> Finding:
    nvml = subject.nvml
    if nvml.state != "ok":
        return _broken(subject, nvml)
    facts = f"driver {nvml.driver or 'n/a'}, CUDA up to {nvml.cuda or 'n/a'}"
    if not nvml.gpus:
        return Finding(Status.WARN, f"{facts}, but no GPU: CPU mode", "0 GPUs", "1 GPU or more")
    names: dict[str, int] = {}
    for gpu in nvml.gpus:
        name = gpu.name or "a GPU without a name"
        names[name] = names.get(name, 0) + 1
    told = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in names.items())
    return ok(f"{told}; {facts}", f"NVML {nvml.version or 'n/a'}")


def _compat(subject: Subject) -> Finding:
    torch, nvml = subject.software.torch, subject.nvml
    if torch is None or torch.cuda is None:
        return skip("torch is not built for CUDA")
    needed, native, driver = (version_pair(v) for v in (torch.cuda, nvml.cuda, nvml.driver))
    floor = DRIVER_FLOORS.get(needed[0]) if needed else None
    expected = f"driver >= {floor}" if floor else None
    built = f"torch is built for CUDA {torch.cuda}"
    if needed and native and native >= needed:
        return ok(
            f"driver {nvml.driver} runs CUDA up to {nvml.cuda}; {built}", nvml.driver, expected
        )
    if floor is None or driver is None:
        return unknown(f"{built}; the driver's own version is {nvml.driver or 'not known'}")
    if driver[0] < floor:
        text = f"{built}, which needs driver ≥ {floor}; found {nvml.driver}"
        older = Remedy(
            "Update the driver, or install an older CUDA build of torch:",
            (torch_install(nvml.cuda),),
        )
        remedy = older if driver[0] >= DRIVER_FLOORS[12] else Remedy("Update the driver.")
        return Finding(Status.FAIL, text, nvml.driver, expected, remedy)
    if native is None:
        return unknown(f"{built}, driver {nvml.driver} is at least {floor}; its CUDA is not known")
    text = (
        f"{built}, driver {nvml.driver} brings CUDA {nvml.cuda}: minor-version compatibility only"
    )
    return Finding(Status.WARN, text, nvml.driver, f"CUDA {torch.cuda} in the driver")


CHECKS = (
    Check(
        id="driver.nvml",
        title="the driver answers",
        category="driver",
        severity="failure",
        run=_nvml,
        about="NVML, the driver's management library, starts and shows a GPU. No driver at all is "
        "one warning, and miractl runs on the CPU. A driver that is there and does not work is a "
        "failure: not loaded, another version than its library, no permission, or, in a container, "
        "a library that was not passed in. All checks of the GPU and its link need this one.",
        source="nvml.h, nvmlInit_v2 and its return codes",
        remedy=Remedy("See what the driver says:", ("nvidia-smi", "sudo dmesg | grep -i nvrm")),
    ),
    Check(
        id="driver.compat",
        title="driver and torch agree on CUDA",
        category="driver",
        severity="failure",
        needs=("driver.nvml",),
        run=_compat,
        about="A driver runs every CUDA up to its own version. It also runs newer minor versions "
        "of the same major version with a limited feature set, from a floor on: 580 for CUDA 13, "
        "525 for CUDA 12, 450 for CUDA 11.",
        source="https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
        remedy=Remedy("Update the driver when something that needs the newer CUDA fails."),
    ),
)
