"""Processors that this process may use: affinity, cores, quota, frequency, NUMA, extensions."""

import re

from miractl.config import omp_threads
from miractl.probe.cgroup import cpu_quota
from miractl.probe.facts import Cpu
from miractl.probe.machine import Machine, cpu_list

CPUS = "/sys/devices/system/cpu"
NODES = "/sys/devices/system/node"
ISA = (
    *("f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "sve", "sve2", "bf16", "i8mm"),
)


def _physical(machine: Machine, mask: set[int]) -> int | None:
    """Cores in the mask: processors with the same sibling list are threads of one core."""
    cores = {machine.line(f"{CPUS}/cpu{n}/topology/thread_siblings_list") for n in mask}
    return None if None in cores else len(cores)


def _nodes(machine: Machine, mask: set[int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """NUMA nodes that there are, and those with a processor in the mask."""
    try:
        names = [name for name in machine.listdir(NODES) if re.fullmatch(r"node\d+", name)]
        cpus = {
            int(name[4:]): cpu_list(machine.read_text(f"{NODES}/{name}/cpulist")) for name in names
        }
    except (OSError, ValueError):
        return None
    return tuple(sorted(cpus)), tuple(sorted(node for node, own in cpus.items() if own & mask))


def _hertz(machine: Machine, mask: set[int], name: str) -> int | None:
    """The highest of the mask: cores of unlike kinds have unlike limits."""
    found = [machine.number(f"{CPUS}/cpu{n}/cpufreq/{name}") for n in mask]
    return max((kilohertz * 1000 for kilohertz in found if kilohertz), default=None)


def probe(machine: Machine) -> Cpu:
    """Raises OSError without /proc/cpuinfo."""
    mask = machine.affinity()
    info = machine.read_text("/proc/cpuinfo")
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", info, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    first = f"{CPUS}/cpu{min(mask)}/cpufreq"
    nodes = _nodes(machine, mask)
    online = machine.line(f"{CPUS}/online")
    return Cpu(
        model=model[1].strip() if model else None,
        logical=len(mask),
        physical=_physical(machine, mask),
        online=len(cpu_list(online)) if online else len(mask),
        quota=cpu_quota(machine),
        omp_num_threads=omp_threads(machine.environ),
        isa=tuple(name for name in ISA if flags and name in flags[1].split()),
        driver=machine.line(f"{first}/scaling_driver"),
        governor=machine.line(f"{first}/scaling_governor"),
        max_hz=_hertz(machine, mask, "scaling_max_freq"),
        hardware_max_hz=_hertz(machine, mask, "cpuinfo_max_freq"),
        nodes=nodes and nodes[0],
        own_nodes=nodes and nodes[1],
    )
