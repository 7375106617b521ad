"""Operating system, container and Python packages; torch is read as text and never imported."""

import platform
import re
import sys

from miractl.probe.facts import Software, Torch
from miractl.probe.machine import Machine

# Compiled against one torch; transformers imports the first where it is installed.
EXTENSIONS = ("torchvision", "torchaudio", "flash-attn", "xformers")
PACKAGES = (
    *("torch", "transformers", "safetensors", "numpy", "nvidia-ml-py", "pynvml"),
    *("accelerate", "vllm", "ray", "textual", "fastapi", "pydantic", "prometheus-client"),
    *EXTENSIONS,
)
# Variables that slow CUDA down or divert it, and what each does.
HARMFUL = {
    "CUDA_LAUNCH_BLOCKING": "makes every kernel wait, so copies no longer overlap compute",
    "CUDA_INJECTION64_PATH": "loads a profiler into every CUDA process",
    "CUDA_PROFILE": "profiles every launch",
    "COMPUTE_PROFILE": "profiles every launch",
    "NSIGHT_CUDA_DEBUGGER": "runs kernels under a debugger",
    "CUDA_COREDUMP_FILE": "dumps device memory when a kernel fails",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "dumps device memory when a kernel fails",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION": "halts the device when a kernel fails",
}
VARIABLES = (
    *HARMFUL,
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
)


def _torch(machine: Machine, version: str | None) -> Torch | None:
    """Build facts of torch/version.py: `cuda: Optional[str] = '13.0'`."""
    init = machine.module_file("torch")
    if version is None or init is None:
        return None
    try:
        text = machine.read_text(init.rpartition("/")[0] + "/version.py")
    except OSError:
        return None
    found = dict(re.findall(r"^(cuda|hip)\b[^=]*= '([^']+)'", text, re.MULTILINE))
    return Torch(version=version, cuda=found.get("cuda"), hip=found.get("hip"))


def _kernel_driver(machine: Machine) -> str | None:
    text = machine.line("/proc/driver/nvidia/version") or ""
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match and match[1]


def _system(machine: Machine) -> str | None:
    try:
        text = machine.read_text("/etc/os-release")
    except OSError:
        return None
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', text, re.MULTILINE)
    return match and match[1]


def _container(machine: Machine) -> str:
    if "KUBERNETES_SERVICE_HOST" in machine.environ:
        return "kubernetes"
    if machine.exists("/.dockerenv"):
        return "docker"
    if machine.exists("/run/.containerenv"):
        return "podman"
    return machine.environ.get("container") or "none"


def _nvml_module(machine: Machine) -> tuple[str | None, bool | None]:
    """File behind `import pynvml`; NVIDIA's own defines nvmlInitWithFlags, its impostors do not."""
    file = machine.module_file("pynvml")
    if file is None:
        return None, None
    try:
        return file, "def nvmlInitWithFlags" in machine.read_text(file)
    except OSError:
        return file, None


def _variables(machine: Machine) -> dict[str, str]:
    """Those that matter, and miractl's own settings."""
    return {
        name: value
        for name, value in sorted(machine.environ.items())
        if name in VARIABLES or name.startswith("MIRACTL_")
    }


def _torch_builds(machine: Machine) -> dict[str, str]:
    """The one torch that a package's metadata requires: `torch==2.8.0`."""
    found = {}
    for name in EXTENSIONS:
        for requirement in machine.requires(name):
            if match := re.match(r"torch *\(?== *([\w.+]+)", requirement):
                found[name] = match[1]
    return found


def probe(machine: Machine) -> Software:
    """Whatever of it can be read."""
    versions = {name: machine.version(name) for name in PACKAGES}
    kernel = machine.line("/proc/sys/kernel/osrelease")
    module, complete = _nvml_module(machine)
    return Software(
        python=platform.python_version(),
        executable=sys.executable,
        kernel=kernel,
        kernel_driver=_kernel_driver(machine),
        system=_system(machine),
        board=(machine.line("/proc/device-tree/model") or "").rstrip("\0") or None,
        wsl=None if kernel is None else "microsoft" in kernel.lower(),
        container=_container(machine),
        packages={name: version for name, version in versions.items() if version is not None},
        torch=_torch(machine, versions["torch"]),
        nvml_module=module,
        nvml_module_complete=complete,
        variables=_variables(machine),
        torch_builds=_torch_builds(machine),
    )
