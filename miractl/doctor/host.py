"""Checks of the host: memory, its limits, and how far it is from the card."""

from miractl.doctor.check import (
    Check,
    Finding,
    Remedy,
    Status,
    Subject,
    each_gpu,
    ok,
    unknown,
)
from miractl.probe.devices import Gpu
from miractl.units import GIB, format_bytes

LITTLE_MEMORY = 2 * GIB  # the runtime and the bundled model take 0.5 GiB


def _ram(subject: Subject) -> Finding:
    host = subject.host
    if host.free is None:
        return unknown("a control group limits memory, but hides how much of it is used")
    free, limit = format_bytes(host.free), format_bytes(host.limit)
    text = f"{free} can be taken now, of {limit}"
    if host.free < LITTLE_MEMORY:
        return Finding(Status.WARN, text, free, f"more than {format_bytes(LITTLE_MEMORY)}")
    return ok(text, free)


def _cgroup(subject: Subject) -> Finding:
    host = subject.host
    tight = min(host.groups, key=lambda group: group.limit, default=None)
    if tight is None or tight.limit >= host.total:
        return ok("no control group limits memory")
    text = (
        f"memory is limited to {format_bytes(tight.limit)} of the host's {format_bytes(host.total)}"
    )
    return ok(f"{text} by {tight.path}", format_bytes(tight.limit))


def _wsl(subject: Subject) -> Finding:
    if subject.software.wsl is None:
        return unknown("the kernel's release cannot be read")
    if not subject.software.wsl:
        return ok("not WSL")
    text = "WSL2: pinned memory is limited, so the staging buffer may have to be small"
    return Finding(Status.WARN, text, subject.software.kernel, "native Linux")


def _numa(subject: Subject, gpu: Gpu) -> Finding:
    cpu, card = subject.cpu, subject.machine.card(gpu)
    if cpu.nodes is None or cpu.own_nodes is None:
        return unknown("the NUMA nodes cannot be read")
    if len(cpu.nodes) < 2:
        return ok("one NUMA node")
    if card is None or card.numa_node is None:
        return unknown(f"{len(cpu.nodes)} NUMA nodes; the card's is not known")
    own, node = ", ".join(map(str, cpu.own_nodes)), card.numa_node
    if cpu.own_nodes == (node,):
        return ok(f"card and process are on NUMA node {node}")
    text = f"the card is on NUMA node {node}, this process may run on {own}"
    remedy = Remedy(
        "Keep processors and memory on the card's node:",
        (f"numactl --cpunodebind={node} --membind={node} miractl serve",),
    )
    return Finding(Status.WARN, text, f"nodes {own}", f"node {node}", remedy)


CHECKS = (
    Check(
        id="host.ram",
        title="memory for this process",
        category="host",
        severity="warning",
        run=_ram,
        about="MemAvailable of the host, or what the tightest control group leaves, whichever is "
        "less. Swap does not count. Below 2 GiB is a warning.",
        source="/proc/meminfo; memory.max and memory.current, or version 1's files",
        remedy=Remedy("See what holds it:", ("ps aux --sort=-rss | head",)),
    ),
    Check(
        id="host.cgroup",
        title="memory limit of the control group",
        category="host",
        severity="info",
        run=_cgroup,
        about="Tools that read the host's memory promise a container more than it may have; the "
        "kernel then kills it. The limit of every group above this process counts.",
        source="linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst",
    ),
    Check(
        id="host.wsl",
        title="WSL",
        category="host",
        severity="warning",
        run=_wsl,
        about="Under WSL2 page-locked memory is limited: 0.5 to 1 GiB are reported. Copies from "
        "ordinary memory still work, more slowly.",
        source="CUDA on WSL user guide, limitations",
        remedy=Remedy(
            "Keep the staging ring small, or use native Linux:",
            ("miractl serve --dma-buffer-size-mb 96",),
        ),
    ),
    Check(
        id="host.numa",
        title="NUMA node of the card",
        category="host",
        severity="warning",
        needs=("driver.nvml",),
        run=each_gpu(_numa),
        about="Copies from the memory of another socket cross one more link. The card's node "
        "should be the only one that this process runs on.",
        source="linux, Documentation/ABI/testing/sysfs-bus-pci, numa_node",
        remedy=Remedy("Keep processors and memory on the card's node."),
    ),
)
