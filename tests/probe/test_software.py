"""System, packages and storage, as text and metadata tell of them."""

import pytest
from fake_machine import fake_machine

from miractl.probe import software, storage
from miractl.probe.facts import Torch

SITE = "/site/torch"


def torch(version_py: str) -> Torch | None:
    return software.probe(
        fake_machine(
            {f"{SITE}/version.py": version_py},
            version=lambda name: "2.13.0" if name == "torch" else None,
            module_file=lambda name: f"{SITE}/__init__.py" if name == "torch" else None,
        )
    ).torch


@pytest.mark.parametrize(
    ("text", "cuda", "hip"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", None, None),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "13.0", None),
        ("cuda = '12.6'\n", "12.6", None),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", None, "6.4"),
    ],
)
def test_torch_is_read_and_not_imported(text: str, cuda: str | None, hip: str | None) -> None:
    assert torch(text) == Torch("2.13.0", cuda, hip)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 UTC 2023",
            "535.104.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build",
            "580.65.06",
        ),
        ("something else", None),
    ],
)
def test_the_loaded_kernel_driver(line: str, version: str | None) -> None:
    files = {"/proc/driver/nvidia/version": f"{line}\nGCC version: 12\n"}
    assert software.probe(fake_machine(files)).kernel_driver == version


@pytest.mark.parametrize(
    ("files", "environ", "container"),
    [
        ({}, {}, "none"),
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/run/.containerenv": ""}, {}, "podman"),
        ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"container": "lxc"}, "lxc"),
    ],
)
def test_containers(files: dict[str, str], environ: dict[str, str], container: str) -> None:
    assert software.probe(fake_machine(files, environ=environ)).container == container


@pytest.mark.parametrize(
    ("release", "wsl"),
    [("6.6.87.2-microsoft-standard-WSL2\n", True), ("6.8.0-88-generic\n", False)],
)
def test_wsl(release: str, wsl: bool) -> None:
    assert software.probe(fake_machine({"/proc/sys/kernel/osrelease": release})).wsl is wsl


@pytest.mark.parametrize(
    ("text", "complete"),
    [("def nvmlInitWithFlags(flags):\n", True), ("from .nvml import *\n", False)],
)
def test_an_impostor_of_pynvml(text: str, complete: bool) -> None:
    machine = fake_machine(
        {"/site/pynvml.py": text},
        module_file=lambda name: "/site/pynvml.py" if name == "pynvml" else None,
    )
    assert software.probe(machine).nvml_module_complete is complete


def test_only_variables_that_matter_are_kept() -> None:
    environ = {"CUDA_LAUNCH_BLOCKING": "1", "AWS_SECRET": "x", "MIRACTL_PORT": "1"}
    found = software.probe(fake_machine(environ=environ)).variables
    assert found == {"CUDA_LAUNCH_BLOCKING": "1", "MIRACTL_PORT": "1"}


def test_storage_of_a_path_that_is_not_there_yet() -> None:
    files = {
        "/data/models/old": "",
        "/proc/self/mountinfo": (
            "27 1 254:0 / / rw - ext4 /dev/vda rw\n28 27 0:50 / /data rw - nfs4 server:/x rw\n"
        ),
    }
    found = storage.probe(fake_machine(files), "/data/models/new/one")
    assert (found.path, found.mount, found.filesystem) == ("/data/models", "/data", "nfs4")
    assert (found.total, found.free) == (1000, 400)


@pytest.mark.parametrize(
    ("requirement", "version"),
    [
        ("torch==2.8.0", "2.8.0"),
        ("torch (==2.8.0)", "2.8.0"),
        ("torch==2.8.0+cu126 ; platform_system != 'Darwin'", "2.8.0+cu126"),
        ("torch>=2.4", None),
        ("torchmetrics==1.0", None),
    ],
)
def test_what_torch_a_package_was_built_for(requirement: str, version: str | None) -> None:
    asked = {"torchvision": ["numpy", requirement]}
    examined = fake_machine(requires=lambda name: asked.get(name, []))
    assert software.probe(examined).torch_builds.get("torchvision") == version
