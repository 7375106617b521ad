"""GPUs as NVML tells of them. The only file that imports pynvml (of the package nvidia-ml-py).

Every field fails alone: its value is None and `errors` holds NVML's reason. On this machine NVML
runs in a child process (`python -m miractl.probe.nvml`): a driver that hangs inside the kernel can
neither be interrupted nor killed, and a thread in it would keep this process from ending.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import combinations
from typing import Any

from miractl.own_python import command_for
from miractl.probe.devices import Gpu, GpuLink, MemoryUse, MigInstance, Nvml, Peers, RowRemap
from miractl.probe.machine import Machine
from miractl.probe.pci import normal_address, valid_generation, valid_width

# Without persistence mode the first start wakes every card, a second or more each.
PATIENCE = 5.0
# Without a kernel driver there is nothing to wait for.
PATIENCE_WITHOUT_DRIVER = 0.7
DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/nvmap")

CLOCK_EVENTS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
VIRTUALIZATION = ("none", "passthrough", "vgpu", "host-vgpu", "host-vsga")
ADDRESSING = ("none", "hmm", "ats")
P2P = (
    *("ok", "chipset not supported", "GPU not supported", "topology not supported"),
    *("disabled in the driver", "not supported", "unknown"),
)
P2P_READ = 0


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _memory(value: Any) -> MemoryUse:
    total, used, free = int(value.total), int(value.used), int(value.free)
    if total <= 0 or not (0 <= used <= total and 0 <= free <= total):
        raise ValueError(f"{total = }, {used = }, {free = }")
    reserved = getattr(value, "reserved", None)
    return MemoryUse(total, used, free, None if reserved is None else int(reserved))


def _events(mask: Any) -> tuple[str, ...]:
    return tuple(name for bit, name in CLOCK_EVENTS.items() if int(mask) & bit)


def _share(percent: int) -> float:
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent = }")
    return percent / 100


def _remap(counts: tuple[int, int, int, int]) -> RowRemap:
    corrected, uncorrected, pending, failed = map(int, counts)
    return RowRemap(corrected, uncorrected, bool(pending), bool(failed))


def _graphics(processes: Any) -> tuple[int | None, ...]:
    sizes = (getattr(process, "usedGpuMemory", None) for process in processes)
    return tuple(None if size is None else int(size) for size in sizes)


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


# How to read each field of a Gpu and of its link, and the calls that may answer, best first.
_Convert = Callable[[Any], Any]
FIELDS: dict[str, tuple[_Convert, *tuple[str, ...]]] = {
    "uuid": (_text, "nvmlDeviceGetUUID"),
    "name": (_text, "nvmlDeviceGetName"),
    "address": (lambda pci: normal_address(_text(pci.busId)), "nvmlDeviceGetPciInfo"),
    "capability": (lambda pair: "{}.{}".format(*pair), "nvmlDeviceGetCudaComputeCapability"),
    "utilization": (lambda rates: _share(rates.gpu), "nvmlDeviceGetUtilizationRates"),
    "performance_state": (range(16).__getitem__, "nvmlDeviceGetPerformanceState"),
    "clock_events": (
        *(_events, "nvmlDeviceGetCurrentClocksEventReasons"),
        "nvmlDeviceGetCurrentClocksThrottleReasons",  # its older name
    ),
    "mig": (lambda modes: bool(modes[0]), "nvmlDeviceGetMigMode"),
    "virtualization": (VIRTUALIZATION.__getitem__, "nvmlDeviceGetVirtualizationMode"),
    "addressing": (ADDRESSING.__getitem__, "nvmlDeviceGetAddressingMode"),
    "ecc_uncorrected": (int, "nvmlDeviceGetTotalEccErrors"),
    "remap": (_remap, "nvmlDeviceGetRemappedRows"),
    "persistence": (bool, "nvmlDeviceGetPersistenceMode"),
    "processes": (len, "nvmlDeviceGetComputeRunningProcesses"),
    "graphics": (_graphics, "nvmlDeviceGetGraphicsRunningProcesses"),
}
LINK_FIELDS: dict[str, tuple[_Convert, str]] = {
    "generation": (valid_generation, "nvmlDeviceGetCurrPcieLinkGeneration"),
    "width": (valid_width, "nvmlDeviceGetCurrPcieLinkWidth"),
    "max_generation": (valid_generation, "nvmlDeviceGetMaxPcieLinkGeneration"),
    "max_width": (valid_width, "nvmlDeviceGetMaxPcieLinkWidth"),
    "card_max_generation": (valid_generation, "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
}
# What a call takes besides the handle: NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC.
ARGUMENTS = {"nvmlDeviceGetTotalEccErrors": (1, 0)}


class Reader:
    """Asks NVML and keeps the reason for what has no answer."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.errors: dict[str, str] = {}

    def ask(self, field: str, convert: _Convert, *calls: tuple[str, *tuple[Any, ...]]) -> Any:
        """The converted answer of the first call that has one, else None."""
        for name, *arguments in calls:
            try:
                answer = convert(getattr(self.nvml, name)(*arguments))
            except Exception as error:  # a field must never take the others down
                self.errors[field] = error_name(error)
            else:
                self.errors.pop(field, None)
                return answer
        return None

    def memory(self, field: str, handle: Any) -> MemoryUse | None:
        """Version 2 tells the driver's own share apart; old drivers have only version 1."""
        version = getattr(self.nvml, "nvmlMemory_v2", None)
        call = "nvmlDeviceGetMemoryInfo"
        calls = [(call, handle, version)] if version is not None else []
        answer: MemoryUse | None = self.ask(field, _memory, *calls, (call, handle))
        return answer


def error_name(error: Exception) -> str:
    """`NotSupported` of NVMLError_NotSupported, and a word for what is not NVML's own error."""
    if isinstance(error, AttributeError):  # the binding is too old for the call, or too new
        return "FunctionNotFound"
    if isinstance(error, TypeError | ValueError | LookupError | ArithmeticError):
        return "Garbage"
    name = type(error).__name__.removeprefix("NVMLError_")
    return str(error) if name == "NVMLError" else name


def _mig_instances(reader: Reader, handle: Any) -> Iterator[MigInstance]:
    count = reader.ask("mig_instances", int, ("nvmlDeviceGetMaxMigDeviceCount", handle)) or 0
    for number in range(count):
        with suppress(reader.nvml.NVMLError):  # NotFound: this place holds no instance
            instance = reader.nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            uuid = reader.ask(f"mig.{number}.uuid", _text, ("nvmlDeviceGetUUID", instance))
            yield MigInstance(uuid, reader.memory(f"mig.{number}.memory", instance))


def _gpu(nvml: Any, index: int) -> Gpu:
    reader = Reader(nvml)
    handle = reader.ask("handle", lambda got: got, ("nvmlDeviceGetHandleByIndex", index))

    def ask(field: str, convert: _Convert, *names: str) -> Any:
        return reader.ask(field, convert, *((n, handle, *ARGUMENTS.get(n, ())) for n in names))

    link = {field: ask(f"link.{field}", *how) for field, how in LINK_FIELDS.items()}
    facts = {field: ask(field, *how) for field, how in FIELDS.items()}
    return Gpu(
        index=index,
        memory=reader.memory("memory", handle),
        link=GpuLink(**link),
        mig_instances=tuple(_mig_instances(reader, handle)) if facts["mig"] else (),
        errors=reader.errors,
        **facts,
    )


def _peers(nvml: Any, count: int) -> Iterator[Peers]:
    for pair in combinations(range(count), 2):
        reader = Reader(nvml)
        handles = [
            reader.ask("handle", lambda got: got, ("nvmlDeviceGetHandleByIndex", index))
            for index in pair
        ]
        call = ("nvmlDeviceGetP2PStatus", *handles, P2P_READ)
        yield Peers(pair, reader.ask("p2p", P2P.__getitem__, call))


def read(nvml: Any) -> Nvml:
    """Start NVML, ask it everything, stop it. A start that fails is an answer, not an error."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Nvml(error_name(error), str(error), None, None, None, ())
    try:
        reader = Reader(nvml)
        count = reader.ask("count", int, ("nvmlDeviceGetCount",))
        return Nvml(
            state="ok" if count is not None else reader.errors["count"],
            message=None,
            version=reader.ask("version", _text, ("nvmlSystemGetNVMLVersion",)),
            driver=reader.ask("driver", _text, ("nvmlSystemGetDriverVersion",)),
            # The first version of this call names some version even without libcuda.
            cuda=reader.ask("cuda", _cuda, ("nvmlSystemGetCudaDriverVersion_v2",)),
            gpus=tuple(_gpu(nvml, index) for index in range(count or 0)),
            peers=tuple(_peers(nvml, count or 0)),
        )
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def patience(machine: Machine) -> float:
    """Seconds that NVML may take here."""
    has_driver = any(machine.exists(path) for path in DRIVER_FILES)
    return PATIENCE if has_driver else PATIENCE_WITHOUT_DRIVER


def probe(machine: Machine, seconds: float | None = None) -> Nvml:
    """NVML's answers, within `seconds` or `patience`.

    Raises TimeoutError when it does not answer, ChildProcessError when the child died of it.
    """
    if machine.nvml is not None:
        return read(machine.nvml)
    from miractl.probe.codec import decode

    answer = machine.run(command_for("miractl.probe.nvml"), seconds or patience(machine))
    return decode(Nvml, json.loads(answer))


def _main() -> None:
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError as error:
        facts = Nvml("BindingMissing", str(error), None, None, None, ())
    else:
        facts = read(pynvml)
    json.dump(asdict(facts), sys.stdout)


if __name__ == "__main__":
    _main()
