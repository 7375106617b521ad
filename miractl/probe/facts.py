"""Facts about one machine at one moment: frozen, serialisable, without opinion.

`None` is "could not find out", never "none there", unless the field says so. A limit that does not
exist is written as the kernel writes it: "max". Bytes, seconds and shares of 1 throughout.
"""

from dataclasses import dataclass, field
from typing import Literal

from miractl.probe.devices import Gpu, LinkLoad, Load, Nvml, PciCard

Limit = int | Literal["max"]


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A control group with a memory limit: this process's own, or one above it."""

    path: str
    limit: int
    usage: int | None
    reclaimable: int | None  # file pages that the kernel gives back before it kills

    @property
    def available(self) -> int | None:
        """Bytes that can still be taken before the limit."""
        if self.usage is None:
            return None
        return max(0, self.limit - self.usage + (self.reclaimable or 0))


@dataclass(frozen=True, slots=True)
class Host:
    """Memory of the host and what this process may have of it. Swap never counts as memory."""

    total: int
    available: int
    swap_total: int | None
    swap_free: int | None
    hugepages: int | None  # reserved, count
    hugepage_bytes: int | None
    groups: tuple[MemoryGroup, ...]  # those that limit, own group first
    memlock: Limit | None  # RLIMIT_MEMLOCK, soft
    own: int | None = None  # what this process has of it, libraries included

    @property
    def limit(self) -> int:
        """Bytes this process can have at most."""
        return min([self.total, *(group.limit for group in self.groups)])

    @property
    def free(self) -> int | None:
        """Bytes this process can take now; None when a limiting group hides its usage."""
        left = [group.available for group in self.groups]
        return None if None in left else min([self.available, *(n for n in left if n is not None)])

    @property
    def pin_budget(self) -> int | None:
        """Bytes to page-lock at most: half of what can be taken, for the rest must be able to page.

        RLIMIT_MEMLOCK is no part of it: the driver locks pages by itself, not by mlock(2).
        """
        return None if self.free is None else self.free // 2


@dataclass(frozen=True, slots=True)
class Cpu:
    """Processors this process may use."""

    model: str | None
    logical: int  # in the affinity mask
    physical: int | None  # cores in the affinity mask
    online: int  # processors of the whole machine
    quota: float | Literal["max"] | None  # processors that the tightest cgroup grants
    omp_num_threads: int | None  # None: not set, or not a number
    isa: tuple[str, ...]  # the extensions that expert kernels care about
    driver: str | None  # frequency scaling; None without cpufreq
    governor: str | None
    max_hz: int | None  # highest frequency allowed now
    hardware_max_hz: int | None
    nodes: tuple[int, ...] | None  # NUMA nodes of the machine
    own_nodes: tuple[int, ...] | None  # NUMA nodes that the affinity mask touches

    @property
    def recommended_threads(self) -> int:
        """Physical cores in the mask, or the quota rounded down when that is less; at least 1."""
        cores = self.physical or self.logical
        return max(1, cores if self.quota in ("max", None) else min(cores, int(self.quota)))

    @property
    def threads(self) -> int:
        """Threads to compute with: OMP_NUM_THREADS wins."""
        return self.omp_num_threads or self.recommended_threads


@dataclass(frozen=True, slots=True)
class Storage:
    """The file system that holds `path`."""

    path: str
    mount: str | None
    filesystem: str | None
    total: int
    free: int  # for this user


@dataclass(frozen=True, slots=True)
class DiskRate:
    """Reading from a folder's disk, one reader from start to end."""

    rate: float  # bytes per second
    size: int  # bytes read
    direct: bool  # past the page cache; else memory may have answered
    temporary: bool  # read from a file made for it and removed, else from one that was there


@dataclass(frozen=True, slots=True)
class Torch:
    """The installed torch, read from its metadata and never imported."""

    version: str
    cuda: str | None  # None: built without CUDA
    hip: str | None


@dataclass(frozen=True, slots=True)
class Software:
    """The system and the Python packages."""

    python: str
    executable: str
    kernel: str | None
    kernel_driver: str | None  # loaded NVIDIA kernel module; None: none to be seen
    system: str | None  # PRETTY_NAME of os-release
    board: str | None  # device-tree model of ARM boards
    wsl: bool | None
    container: str | None  # "none" without a sign of one
    packages: dict[str, str]  # name -> version, of those asked for and installed
    torch: Torch | None  # None: not installed, or not readable (then `packages` names it)
    nvml_module: str | None  # file behind `import pynvml`
    nvml_module_complete: bool | None  # it is NVIDIA's, not an impostor or a remnant
    variables: dict[str, str]  # environment, only names known to matter
    torch_builds: dict[str, str] = field(default_factory=dict)  # package -> the torch it requires
    kernels: str | None = None  # "" when the CPU kernels can be used, else why not; None: not asked


@dataclass(frozen=True, slots=True)
class ProbeProblem:
    """A probe that failed; its field of the snapshot is None."""

    probe: str
    error: str


@dataclass(frozen=True, slots=True)
class HardwareSnapshot:
    """Everything above at one moment."""

    timestamp: float  # unix seconds
    software: Software | None
    host: Host | None
    cpu: Cpu | None
    storage: Storage | None
    pci: tuple[PciCard, ...] | None
    nvml: Nvml | None
    problems: tuple[ProbeProblem, ...]
    seconds: dict[str, float]  # how long each probe took
    load: Load | None = None  # None: not measured, as always without being asked
    disk_rate: DiskRate | None = None  # likewise

    def problem(self, probe: str) -> str | None:
        """Why a probe has no answer."""
        return next((p.error for p in self.problems if p.probe == probe), None)

    def card(self, gpu: Gpu) -> PciCard | None:
        """The PCI side of a GPU."""
        return next((c for c in self.pci or () if c.address == gpu.address), None)

    def link_load(self, gpu: Gpu) -> LinkLoad | None:
        """What was measured on the link of a GPU."""
        links = self.load.links if self.load else ()
        return next((link for link in links if link.address == gpu.address), None)
