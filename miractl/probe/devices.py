"""Facts about GPUs and the way to them, as the bus, NVML and a test copy tell them.

The conventions are those of `facts`: None is "could not find out"; bytes, seconds, shares of 1.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PciPort:
    """One device on the way from a card to the root of the PCI tree, and its link."""

    address: str  # 0000:65:00.0
    generation: int | None  # now; idle links slow down
    width: int | None  # lanes now
    max_generation: int | None
    max_width: int | None


@dataclass(frozen=True, slots=True)
class PciCard:
    """An NVIDIA display or compute device on the bus, driver or not."""

    device: str  # PCI device id, 0x2236
    numa_node: int | None
    ports: tuple[PciPort, ...]  # the card first, the root port last

    @property
    def address(self) -> str:
        """The card's own PCI address."""
        return self.ports[0].address


@dataclass(frozen=True, slots=True)
class GpuLink:
    """The PCIe link as NVML tells it. Its maximum is already limited by the slot."""

    generation: int | None
    width: int | None
    max_generation: int | None
    max_width: int | None
    card_max_generation: int | None  # the card alone; there is no such call for the width


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Device memory in bytes; reserved belongs to the driver and firmware."""

    total: int
    used: int
    free: int
    reserved: int | None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One slice of a card in MIG mode."""

    uuid: str | None
    memory: MemoryUse | None


@dataclass(frozen=True, slots=True)
class RowRemap:
    """Rows of device memory that were replaced by spare ones."""

    corrected: int  # because of errors that were corrected
    uncorrected: int  # because of errors that were not
    pending: bool  # takes effect at the next reset
    failed: bool  # there was no spare row left


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device as NVML tells it. `errors` names the NVML error of every field that is None."""

    index: int  # NVML's, which need not be CUDA's
    uuid: str | None
    name: str | None
    address: str | None
    capability: str | None  # compute capability, "8.6"
    memory: MemoryUse | None
    link: GpuLink
    utilization: float | None  # share of time with a kernel running
    performance_state: int | None  # 0 fastest, 8 and up idle
    clock_events: tuple[str, ...] | None  # why clocks are what they are
    mig: bool | None
    mig_instances: tuple[MigInstance, ...]
    virtualization: str | None  # none, passthrough, vgpu, host-vgpu, host-vsga
    addressing: str | None  # none, hmm, ats
    ecc_uncorrected: int | None  # since the driver was loaded
    remap: RowRemap | None
    persistence: bool | None  # the driver stays loaded without a client
    processes: int | None  # compute processes visible from here
    graphics: tuple[int | None, ...] | None  # device memory of each graphics process
    errors: dict[str, str]

    @property
    def lost(self) -> bool:
        """Whether the device no longer answers."""
        return "GpuIsLost" in self.errors.values()

    @property
    def shares_host_memory(self) -> bool | None:
        """Whether the CPU's memory is the GPU's: integrated (no memory of its own), or ATS."""
        if self.errors.get("memory") == "NotSupported" and not self.mig:
            return True
        if self.addressing is not None:
            return self.addressing == "ats"
        return False if self.memory is not None or self.mig else None


@dataclass(frozen=True, slots=True)
class Peers:
    """Two devices, and whether one can read the other's memory without the host."""

    indices: tuple[int, int]
    status: str | None  # ok, or NVML's reason why not


@dataclass(frozen=True, slots=True)
class Nvml:
    """What the NVIDIA management library answered. `state` is "ok" or the error of its start."""

    state: str  # ok, LibraryNotFound, DriverNotLoaded, LibRmVersionMismatch, NoPermission, ...
    message: str | None
    version: str | None
    driver: str | None  # 580.65.06
    cuda: str | None  # the newest CUDA this driver runs, 13.0
    gpus: tuple[Gpu, ...]
    peers: tuple[Peers, ...] = ()  # all pairs; empty with less than two devices


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """A card's link while memory was copied to it from pinned host memory."""

    address: str
    rate: float | None  # bytes per second, host to device
    generation: int | None  # the best seen while copying
    width: int | None
    replays: int | None  # packets sent again meanwhile
    ports: tuple[PciPort, ...]  # sysfs while copying, the card first; empty: not readable
    error: str | None  # why it could not be copied


@dataclass(frozen=True, slots=True)
class PinTrial:
    """An attempt to page-lock host memory in one piece."""

    size: int
    error: str | None  # None: it worked


@dataclass(frozen=True, slots=True)
class Load:
    """What was measured while copying; a child process does that, and only on request."""

    links: tuple[LinkLoad, ...]
    pins: tuple[PinTrial, ...]  # by size, up to the first that failed

    @property
    def largest_pin(self) -> int | None:
        """Bytes of the largest piece that could be page-locked; None when nothing was tried."""
        worked = [trial.size for trial in self.pins if trial.error is None]
        return max(worked, default=0) if self.pins else None
