"""A block to paste into a bug report: the machine in a few lines, without what is private.

Home folders, the host's name, UUIDs, long ids and anything that looks like a secret are replaced;
one UUID gets the same stand-in everywhere, so a redacted machine still examines like the real one.
"""

import os
import platform
import re
from collections.abc import Callable, Iterator
from typing import Any

from miractl import __version__
from miractl.probe.devices import Gpu, Nvml, PciCard
from miractl.probe.facts import Cpu, HardwareSnapshot, Host, Software, Storage
from miractl.units import format_bytes, format_share

MISSING = "could not collect"
_DEVICE = re.compile(r"\b(GPU|MIG)-([0-9a-f]{4,8})[0-9a-f-]*", re.IGNORECASE)
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_PRIVATE = (
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<uuid>"),
    (re.compile(r"\b[0-9a-f]{32,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b(hf_|sk-|gh[pousr]_|glpat-|xox[abp]-)[\w-]{8,}"), "<secret>"),
    (re.compile(r"(?<=://)[^/@\s]+@"), "<secret>@"),
    (re.compile(r"/(home|Users)/[^/\s:]+"), "~"),
)


class Redactor:
    """Replaces what is private; remembers which device got which stand-in."""

    def __init__(self, home: str | None = None, host: str | None = None) -> None:
        self._home = os.path.expanduser("~") if home is None else home
        self._host = platform.node() if host is None else host
        self._devices: dict[str, str] = {}

    def text(self, text: str) -> str:
        """One string without what is private."""
        if len(self._home) > 1:
            text = re.sub(rf"{re.escape(self._home)}(?=/|$)", "~", text)
        if self._host and self._host != "localhost":
            text = re.sub(rf"\b{re.escape(self._host)}\b", "<host>", text)
        text = _DEVICE.sub(self._device, text)
        for pattern, stand_in in _PRIVATE:
            text = pattern.sub(stand_in, text)
        return text

    def tree(self, data: Any, key: str = "") -> Any:
        """A JSON tree without what is private; a secret is also known by its name."""
        if isinstance(data, dict):
            return {name: self.tree(value, name) for name, value in data.items()}
        if isinstance(data, list | tuple):
            return [self.tree(value, key) for value in data]
        if isinstance(data, str):
            return "<secret>" if _SECRET_NAME.search(key) else self.text(data)
        return data

    def _device(self, match: re.Match[str]) -> str:
        kind, start = match[1].upper(), match[2].lower()
        known = (n for s, n in self._devices.items() if s.startswith(kind + start))
        name = next(known, f"{kind}-redacted-{len(self._devices) + 1}")
        return self._devices.setdefault(kind + start, name)


def _or(value: object, suffix: str = "") -> str:
    return "n/a" if value is None else f"{value}{suffix}"


def _software(software: Software) -> Iterator[tuple[str, str]]:
    yield "system", f"{_or(software.system)}, kernel {_or(software.kernel)}"
    yield "container", _or(software.container) + (", WSL" if software.wsl else "")
    if software.board:
        yield "board", software.board
    yield "python", f"{software.python} ({software.executable})"
    torch = software.torch
    built = "n/a" if torch is None else torch.cuda or "none"
    packages = [f"{name} {version}" for name, version in software.packages.items()]
    yield "packages", ", ".join(packages) or "none of those that matter"
    yield "torch's CUDA", built
    pairs = (f"{name}={value}" for name, value in software.variables.items())
    yield "variables", " ".join(pairs) or "none of those that matter"


def _gpu(gpu: Gpu) -> str:
    memory, link = gpu.memory, gpu.link
    parts = [
        _or(gpu.name),
        _or(gpu.uuid),
        f"capability {_or(gpu.capability)}",
        "memory n/a"
        if memory is None
        else f"{format_bytes(memory.free)} free of {format_bytes(memory.total)}",
        f"PCI {_or(gpu.address)}",
        f"Gen{_or(link.generation)} of {_or(link.max_generation)}",
        f"x{_or(link.width)} of {_or(link.max_width)}",
        f"P{_or(gpu.performance_state)}",
        f"busy {format_share(gpu.utilization)}",
        *(["MIG"] if gpu.mig else []),
        *([gpu.virtualization] if gpu.virtualization not in (None, "none") else []),
        *(f"{field}: {error}" for field, error in gpu.errors.items()),
    ]
    return ", ".join(str(part) for part in parts)


def _nvml(nvml: Nvml) -> Iterator[tuple[str, str]]:
    if nvml.state != "ok":
        yield "driver", f"{nvml.state}: {_or(nvml.message)}"
        return
    yield "driver", f"{_or(nvml.driver)}, CUDA {_or(nvml.cuda)}, NVML {_or(nvml.version)}"
    yield from ((f"gpu {gpu.index}", _gpu(gpu)) for gpu in nvml.gpus)


def _pci(cards: tuple[PciCard, ...]) -> Iterator[tuple[str, str]]:
    for card in cards:
        ports = (
            f"{p.address} Gen{_or(p.generation)}/{_or(p.max_generation)}"
            f" x{_or(p.width)}/{_or(p.max_width)}"
            for p in card.ports
        )
        yield "pci", f"{' < '.join(ports)}, NUMA node {_or(card.numa_node)}"


def _cpu(cpu: Cpu) -> Iterator[tuple[str, str]]:
    yield (
        "cpu",
        (
            f"{_or(cpu.model)}, {_or(cpu.physical)} cores, {cpu.logical} logical of {cpu.online}, "
            f"quota {_or(cpu.quota)}, governor {_or(cpu.governor)}, threads {cpu.threads}"
        ),
    )
    yield "extensions", " ".join(cpu.isa) or "none of those that matter"


def _host(host: Host) -> Iterator[tuple[str, str]]:
    yield (
        "memory",
        (
            f"{format_bytes(host.free)} free of {format_bytes(host.limit)} "
            f"(host {format_bytes(host.total)}), swap {format_bytes(host.swap_total)}"
        ),
    )
    limit = "no limit" if host.memlock == "max" else format_bytes(host.memlock)
    yield "memlock", limit


def _storage(disk: Storage) -> Iterator[tuple[str, str]]:
    yield "disk", f"{format_bytes(disk.free)} free on {_or(disk.filesystem)} ({_or(disk.mount)})"


_SECTIONS: dict[str, Callable[[Any], Iterator[tuple[str, str]]]] = {
    "software": _software,
    "nvml": _nvml,
    "pci": _pci,
    "cpu": _cpu,
    "host": _host,
    "storage": _storage,
}


def block(machine: HardwareSnapshot) -> str:
    """Name and value a line. The machine is expected to be redacted already."""
    rows: list[tuple[str, str]] = [("miractl", __version__)]
    for field, section in _SECTIONS.items():
        facts = getattr(machine, field)
        if facts is None:
            rows.append((field, f"{MISSING}: {_or(machine.problem(field))}"))
        else:
            rows.extend(section(facts))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
