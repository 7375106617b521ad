"""A machine out of dictionaries, and an NVML module out of answers."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from miractl.probe.machine import Machine

MOUNTS_V2 = "30 25 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
MOUNTS_V1 = (
    "31 25 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
MEMINFO = (
    "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\nHugePages_Total: 3\nHugepagesize: 2048 kB\n"
)


def fake_machine(
    files: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
    **members: Any,
) -> Machine:
    """A machine that holds these files and no others; every call can be replaced."""
    files, links = dict(files or {}), dict(links or {})

    def read_text(path: str) -> str:
        for link, target in links.items():
            path = path.replace(link, target, 1) if path.startswith(link + "/") else path
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    def listdir(path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        names = {p[len(prefix) :].split("/")[0] for p in (*files, *links) if p.startswith(prefix)}
        if not names:
            raise FileNotFoundError(path)
        return sorted(names)

    plain: dict[str, Any] = {
        "read_text": read_text,
        "listdir": listdir,
        "realpath": lambda path: links.get(path, path),
        "run": lambda command, timeout: "{}",
        "environ": {},
        "clock": lambda: 1000.0,
        "affinity": lambda: {0, 1},
        "disk": lambda path: (1000, 400),
        "version": lambda package: None,
        "requires": lambda package: [],
        "module_file": lambda module: None,
        "nvml": FakeNvml({}),
    }
    return Machine(**{**plain, **members})


class FakeNvml:
    """Answers by name of the function; an exception is raised; everything else is NotSupported.

    A function of its own gets the arguments. Unlike the real module it knows no card by itself.
    """

    nvmlMemory_v2 = 0x2000028  # noqa: N815 - NVML's own name

    class NVMLError(Exception):
        """Base of all."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = {"nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": 0, **answers}
        self.calls: list[str] = []

    @classmethod
    def error(cls, name: str) -> Exception:
        """An NVML error as the real module makes it."""
        kind = type(f"NVMLError_{name}", (cls.NVMLError,), {})
        return kind(f"{name} happened")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml") or self.answers.get(name) is AttributeError:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            answer = self.answers.get(name, self.error("NotSupported"))
            if callable(answer):
                answer = answer(*arguments)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def memory(total: int, used: int, **more: int) -> SimpleNamespace:
    """NVML's struct."""
    return SimpleNamespace(total=total, used=used, free=total - used, **more)


A10 = {
    "nvmlDeviceGetCount": 1,
    "nvmlSystemGetNVMLVersion": "13.580.95.05",
    "nvmlSystemGetDriverVersion": b"580.95.05",  # old bindings answer bytes
    "nvmlSystemGetCudaDriverVersion_v2": 13000,
    "nvmlDeviceGetHandleByIndex": "handle",
    "nvmlDeviceGetUUID": "GPU-1",
    "nvmlDeviceGetName": "NVIDIA A10",
    "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:65:00.0"),
    "nvmlDeviceGetCudaComputeCapability": (8, 6),
    "nvmlDeviceGetMemoryInfo": memory(1000, 100, reserved=50),
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "nvmlDeviceGetCurrPcieLinkWidth": 8,
    "nvmlDeviceGetMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetMaxPcieLinkWidth": 8,
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37, memory=1),
    "nvmlDeviceGetPerformanceState": 8,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x1 | 0x40,
    "nvmlDeviceGetVirtualizationMode": 0,
    "nvmlDeviceGetAddressingMode": 0,
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetRemappedRows": (1, 2, 0, 1),
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetComputeRunningProcesses": ["one", "two"],
    "nvmlDeviceGetGraphicsRunningProcesses": [
        SimpleNamespace(usedGpuMemory=7),
        SimpleNamespace(usedGpuMemory=None),
    ],
}
