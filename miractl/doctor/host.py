"""Checks of the host: memory and its limits, processors, disk."""

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
from miractl.probe.facts import Cpu, Gpu
from miractl.units import GIB, format_bytes

LITTLE_MEMORY = 2 * GIB  # the runtime and the bundled model take 0.5 GiB
LITTLE_DISK = 1 * GIB  # recordings, traces, caches
# Governors under these drivers are hints to hardware that picks the clock itself.
SELF_CLOCKING = ("intel_pstate", "amd-pstate", "amd-pstate-epp", "cppc_cpufreq")


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


def _quota(cpu: Cpu) -> str:
    return (
        "no quota"
        if cpu.quota == "max"
        else "quota n/a"
        if cpu.quota is None
        else (f"quota {cpu.quota:g}")
    )


def _threads(subject: Subject) -> Finding:
    cpu = subject.cpu
    basis = (
        f"cores {cpu.physical or 'n/a'}, logical processors {cpu.logical} of {cpu.online}, "
        f"{_quota(cpu)}"
    )
    expected = str(cpu.recommended_threads)
    if cpu.physical is None or cpu.quota is None:
        return unknown(f"threads: {cpu.threads}, not certain ({basis})", str(cpu.threads))
    if cpu.omp_num_threads is None:
        return ok(f"threads: {cpu.threads} ({basis})", expected, expected)
    text = f"threads: {cpu.threads} by OMP_NUM_THREADS, recommended {expected} ({basis})"
    status = Status.WARN if cpu.threads > cpu.recommended_threads else Status.OK
    return Finding(status, text, str(cpu.threads), expected)


def _frequency(subject: Subject) -> Finding:
    cpu = subject.cpu
    if cpu.governor is None:
        return unknown("frequency scaling is not shown here, as in most virtual machines")
    if cpu.max_hz and cpu.hardware_max_hz and cpu.max_hz < cpu.hardware_max_hz:
        now, best = f"{cpu.max_hz / 1e9:.2f} GHz", f"{cpu.hardware_max_hz / 1e9:.2f} GHz"
        return Finding(
            Status.WARN, f"clock is capped at {now}, the processor can do {best}", now, best
        )
    told = f"governor {cpu.governor} ({cpu.driver or 'driver n/a'})"
    if cpu.governor == "powersave" and cpu.driver not in SELF_CLOCKING:
        return Finding(Status.WARN, f"{told} holds the lowest clock", cpu.governor, "performance")
    return ok(told, cpu.governor)


def _disk(subject: Subject) -> Finding:
    disk = subject.storage
    free = format_bytes(disk.free)
    where = f"{disk.filesystem or 'n/a'} ({disk.mount or disk.path})"
    text = f"{free} free of {format_bytes(disk.total)} on {where}"
    if disk.free < LITTLE_DISK:
        return Finding(Status.WARN, text, free, f"more than {format_bytes(LITTLE_DISK)}")
    return ok(text, free)


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
    Check(
        id="cpu.threads",
        title="threads to compute with",
        category="cpu",
        severity="warning",
        run=_threads,
        about="Physical cores in the affinity mask, or the quota of the control group rounded down "
        "if that is less. OMP_NUM_THREADS wins and is shown; more than recommended is a warning.",
        source="sched_getaffinity(2); cpu.max, or cpu.cfs_quota_us",
        remedy=Remedy("Let miractl choose:", ("unset OMP_NUM_THREADS",)),
    ),
    Check(
        id="cpu.freq",
        title="clock of the processor",
        category="cpu",
        severity="warning",
        run=_frequency,
        about="A limit below what the processor can do, or the governor powersave where it means "
        "the lowest clock (under intel_pstate and amd-pstate it does not). The clock in "
        "/proc/cpuinfo is only that of the moment.",
        source="linux, Documentation/admin-guide/pm/cpufreq.rst and intel_pstate.rst",
        remedy=Remedy("Let it run:", ("sudo cpupower frequency-set -g performance",)),
    ),
    Check(
        id="disk.free",
        title="free space",
        category="disk",
        severity="warning",
        run=_disk,
        about="Space for recordings, traces and heat where the command runs. Below 1 GiB is a "
        "warning.",
        source="statvfs(3), /proc/self/mountinfo",
        remedy=Remedy("See what takes it:", ("du -xhd1 . | sort -h | tail",)),
    ),
)
