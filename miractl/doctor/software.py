"""Checks of Python, its packages and the environment."""

import re

from miractl.doctor.check import Check, Finding, Remedy, Status, Subject, ok, skip, unknown
from miractl.probe.software import HARMFUL

PYTHON = (3, 11)
TRANSFORMERS = ((5, 16), (6, 0))
NVML_BINDING = (12, 535)


def version_pair(text: str | None) -> tuple[int, int] | None:
    """(5, 24) of `5.24.0`; None for what is no version."""
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return None if match is None else (int(match[1]), int(match[2]))


def torch_install(cuda: str | None) -> str:
    """The command for a torch that runs on a driver whose newest CUDA is `cuda`."""
    index = "cu130" if (version_pair(cuda) or (0, 0)) >= (13, 0) else "cu126"
    wheels = f"https://download.pytorch.org/whl/{index}"
    return f"pip install --force-reinstall torch --index-url {wheels}"


def _python(subject: Subject) -> Finding:
    found, expected = subject.software.python, f">= {PYTHON[0]}.{PYTHON[1]}"
    if (version_pair(found) or PYTHON) >= PYTHON:
        return ok(f"Python {found}", found, expected)
    return Finding(Status.FAIL, f"Python {found}, needs {expected}", found, expected)


def _transformers(subject: Subject) -> Finding:
    found, expected = subject.software.packages.get("transformers"), ">= 5.16, < 6"
    if found is None:
        return Finding(Status.FAIL, "transformers is not installed", None, expected)
    pair = version_pair(found)
    if pair is None:
        return unknown(f"transformers has the version {found!r}", found)
    if TRANSFORMERS[0] <= pair < TRANSFORMERS[1]:
        return ok(f"transformers {found}", found, expected)
    text = f"transformers {found}, needs {expected}"
    return Finding(Status.FAIL, text, found, expected)


def _torch(subject: Subject) -> Finding:
    torch, installed = subject.software.torch, subject.software.packages.get("torch")
    if installed is None:
        return Finding(Status.FAIL, "torch is not installed", None, "torch")
    if torch is None:
        return unknown(f"torch {installed} is installed, but not how it was built", installed)
    if torch.cuda:
        return ok(f"torch {torch.version}, built for CUDA {torch.cuda}", torch.version)
    if torch.hip:
        return unknown(f"torch {torch.version} is built for ROCm {torch.hip}", torch.version)
    nvml = subject.machine.nvml
    if nvml is None and not subject.has_gpu:
        return unknown(f"torch {torch.version} is a CPU build; whether there is a GPU is not known")
    if nvml is not None and nvml.gpus:
        text = (
            f"torch {torch.version} is a CPU build and will not use the GPU ({nvml.gpus[0].name})"
        )
        remedy = Remedy("Install a CUDA build of torch:", (torch_install(nvml.cuda),))
        return Finding(Status.FAIL, text, "built without CUDA", "built for CUDA", remedy)
    return ok(f"torch {torch.version}, a CPU build; there is no usable GPU", torch.version)


def _binding(subject: Subject) -> Finding:
    packages = subject.software.packages
    found, shim = packages.get("nvidia-ml-py"), packages.get("pynvml")
    expected = f"nvidia-ml-py >= {NVML_BINDING[0]}.{NVML_BINDING[1]}"
    if shim is not None:
        text = f"the deprecated package pynvml {shim} is installed; its successor is nvidia-ml-py"
        return Finding(Status.WARN, text, f"pynvml {shim}", expected)
    if found is None:
        return Finding(Status.WARN, "nvidia-ml-py is not installed", None, expected)
    if (version_pair(found) or NVML_BINDING) < NVML_BINDING:
        return Finding(Status.WARN, f"nvidia-ml-py {found}, needs {expected}", found, expected)
    return ok(f"nvidia-ml-py {found}", found, expected)


def _shadow(subject: Subject) -> Finding:
    file, complete = subject.software.nvml_module, subject.software.nvml_module_complete
    if file is None:
        return skip("there is no module pynvml")
    if complete is None:
        return unknown("the module pynvml cannot be read", file)
    if complete and "nvidia-ml-py" in subject.software.packages:
        return ok("the module pynvml is that of nvidia-ml-py", file)
    text = "the module pynvml is not that of nvidia-ml-py: another package has put its own there"
    return Finding(Status.FAIL, text, file, "pynvml.py of nvidia-ml-py")


def _variables(subject: Subject) -> Finding:
    variables = subject.software.variables
    bad = [name for name in HARMFUL if variables.get(name) not in (None, "", "0")]
    if not bad:
        return ok("no variable that slows CUDA down is set")
    text = "; ".join(f"{name} is set: it {HARMFUL[name]}" for name in bad)
    remedy = Remedy("Unset what is not wanted:", (f"unset {' '.join(bad)}",))
    return Finding(Status.WARN, text, ", ".join(bad), "not set", remedy)


CHECKS = (
    Check(
        id="py.version",
        title="Python",
        category="software",
        severity="failure",
        run=_python,
        about="miractl needs Python 3.11 or newer.",
        source="pyproject.toml, requires-python",
        remedy=Remedy("Make an environment with a newer Python:", ("uv venv --python 3.12",)),
    ),
    Check(
        id="py.transformers",
        title="transformers",
        category="software",
        severity="failure",
        run=_transformers,
        about="Model code comes from transformers; 5.16 is the first version with the interface "
        "that experts are served through, and 6 may change it.",
        source="pyproject.toml, dependencies",
        remedy=Remedy("Install a version in range:", ('pip install "transformers>=5.16,<6"',)),
    ),
    Check(
        id="torch.build",
        title="torch and what it was built for",
        category="software",
        severity="failure",
        run=_torch,
        about="A torch wheel built without CUDA runs, but never on the GPU. On a machine without a "
        "GPU that is the right one. Read from the package's files; torch is not imported.",
        source="torch/version.py of the installed package",
        remedy=Remedy("Install torch:", ("pip install torch",)),
    ),
    Check(
        id="py.nvml-binding",
        title="Python binding of NVML",
        category="software",
        severity="warning",
        run=_binding,
        about="The module pynvml comes from the package nvidia-ml-py. The package pynvml is "
        "deprecated and warns at every import.",
        source="https://pypi.org/project/pynvml/, https://pypi.org/project/nvidia-ml-py/",
        remedy=Remedy(
            "Keep only NVIDIA's own:", ("pip uninstall -y pynvml", "pip install -U nvidia-ml-py")
        ),
    ),
    Check(
        id="py.nvml-shadow",
        title="the module behind `import pynvml`",
        category="software",
        severity="failure",
        run=_shadow,
        about="Other packages overwrite pynvml.py or hide it behind a folder of that name; GPU "
        "facts then come from old or foreign code. NVIDIA's own defines nvmlInitWithFlags.",
        source="nvitop/api/libnvml.py, test for corrupted installations",
        remedy=Remedy(
            "Remove the other package and install NVIDIA's own again:",
            ("pip uninstall -y pynvml", "pip install --force-reinstall nvidia-ml-py"),
        ),
    ),
    Check(
        id="env.bad-vars",
        title="environment variables that hurt",
        category="software",
        severity="warning",
        run=_variables,
        about="Debugging and profiling variables of CUDA that were left set: "
        + "; ".join(f"`{name}` {effect}" for name, effect in HARMFUL.items())
        + ".",
        source="NVIDIA DCGM, nvvs/src/Software.cpp, and the CUDA programming guide",
        remedy=Remedy("Unset what is not wanted."),
    ),
)
