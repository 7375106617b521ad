"""Memory of the host: what there is, what is left, and what limits this process."""

import re

from miractl.probe.cgroup import memory_groups
from miractl.probe.facts import Host, Limit
from miractl.probe.machine import Machine


def _meminfo(machine: Machine) -> dict[str, int]:
    """/proc/meminfo in bytes; the rows without a unit are counts."""
    rows = re.findall(
        r"^([^:\n]+):\s+(\d+)( kB)?$", machine.read_text("/proc/meminfo"), re.MULTILINE
    )
    return {name: int(number) * (1024 if unit else 1) for name, number, unit in rows}


def _memlock(machine: Machine) -> Limit | None:
    try:
        text = machine.read_text("/proc/self/limits")
    except OSError:
        return None
    match = re.search(r"^Max locked memory\s+(\d+|unlimited)", text, re.MULTILINE)
    return None if match is None else "max" if match[1] == "unlimited" else int(match[1])


def _own(machine: Machine) -> int | None:
    try:
        text = machine.read_text("/proc/self/status")
    except OSError:
        return None
    match = re.search(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE)
    return None if match is None else int(match[1]) * 1024


def probe(machine: Machine) -> Host:
    """Raises OSError or KeyError without a usable /proc/meminfo."""
    info = _meminfo(machine)
    return Host(
        total=info["MemTotal"],
        available=info["MemAvailable"],
        swap_total=info.get("SwapTotal"),
        swap_free=info.get("SwapFree"),
        hugepages=info.get("HugePages_Total"),
        hugepage_bytes=info.get("Hugepagesize"),
        groups=memory_groups(machine),
        memlock=_memlock(machine),
        own=_own(machine),
    )
