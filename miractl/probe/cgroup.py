"""Control groups of this process, version 1 and 2: its own folder and every one above it.

The tightest limit counts, wherever it is. What is above a container's mount cannot be seen.
"""

from collections.abc import Callable, Iterator
from typing import Literal

from miractl.probe.facts import MemoryGroup
from miractl.probe.machine import Machine

# Version 1 writes "no limit" as the largest multiple of the page size.
UNLIMITED = 2**62


def _mount(machine: Machine, controller: str) -> tuple[int, str, str] | None:
    """Version, root and mount point of the controller's hierarchy.

    A controller lives in one hierarchy: in version 1's when mounted there, else in version 2's.
    """
    unified = None
    for row in machine.read_text("/proc/self/mountinfo").splitlines():
        left, _, right = row.partition(" - ")
        root, point = left.split()[3:5]
        kind, _, options = right.split(maxsplit=2)
        if kind == "cgroup" and controller in options.split(","):
            return 1, root, point
        if kind == "cgroup2":
            unified = unified or (2, root, point)
    return unified


def _own_path(machine: Machine, version: int, controller: str) -> str:
    for row in machine.read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = row.split(":", 2)
        if (version == 2 and not controllers) or controller in controllers.split(","):
            return path
    return "/"


def _folders(machine: Machine, controller: str) -> tuple[int, list[str]]:
    """Version, and the folders from the own group up to the mount; none without cgroups."""
    mount = _mount(machine, controller)
    if mount is None:
        return 2, []
    version, root, point = mount
    path = _own_path(machine, version, controller)
    # A container that shares the host's cgroup namespace mounts only a subtree: `root`.
    path = path.removeprefix(root.rstrip("/")) if path.startswith(root) else ""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return version, ["/".join([point, *parts[:n]]) for n in range(len(parts), -1, -1)]


def _limit(machine: Machine, path: str) -> int | None:
    number = machine.number(path)  # "max" is no number
    return None if number is None or not 0 <= number < UNLIMITED else number


def _reclaimable(machine: Machine, folder: str, key: str) -> int | None:
    try:
        rows = machine.read_text(f"{folder}/memory.stat").splitlines()
    except OSError:
        return None
    return next((int(row.split()[1]) for row in rows if row.startswith(f"{key} ")), None)


def memory_groups(machine: Machine) -> tuple[MemoryGroup, ...]:
    """The groups that limit memory, own first; empty: no limit. Raises OSError without /proc."""
    version, folders = _folders(machine, "memory")
    limit, usage, reclaimable = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }[version]
    return tuple(
        MemoryGroup(
            folder,
            bytes_,
            machine.number(f"{folder}/{usage}"),
            _reclaimable(machine, folder, reclaimable),
        )
        for folder in folders
        if (bytes_ := _limit(machine, f"{folder}/{limit}")) is not None
    )


def _quota_v1(machine: Machine, folder: str) -> float | None:
    quota = machine.number(f"{folder}/cpu.cfs_quota_us")
    period = machine.number(f"{folder}/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _quota_v2(machine: Machine, folder: str) -> float | None:
    quota, _, period = (machine.line(f"{folder}/cpu.max") or "max").partition(" ")
    return int(quota) / int(period or 100_000) if quota.isdigit() else None


def cpu_quota(machine: Machine) -> float | Literal["max"]:
    """Processors that the tightest group grants, 7.65; "max" without a limit."""
    version, folders = _folders(machine, "cpu")
    read: Callable[[Machine, str], float | None] = _quota_v1 if version == 1 else _quota_v2
    quotas: Iterator[float] = (q for f in folders if (q := read(machine, f)) is not None)
    return min(quotas, default="max")
