"""What machines for tests are made of: a plain server, and words to change it with."""

from dataclasses import replace
from itertools import combinations
from typing import Any

from miractl.probe.devices import (
    Gpu,
    GpuLink,
    LinkLoad,
    Load,
    MemoryUse,
    Nvml,
    PciCard,
    PciPort,
    Peers,
    PinTrial,
    RowRemap,
)
from miractl.probe.facts import Cpu, HardwareSnapshot, Host, Software, Storage, Torch

MIB, GIB = 2**20, 2**30
LINK_FIELDS = ("generation", "width", "max_generation", "max_width", "card_max_generation")

SOFTWARE = Software(
    python="3.12.11",
    executable="/srv/venv/bin/python",
    kernel="6.8.0-88-generic",
    kernel_driver="580.95.05",
    system="Ubuntu 24.04.3 LTS",
    board=None,
    wsl=False,
    container="none",
    packages={
        "torch": "2.13.0",
        "transformers": "5.24.0",
        "safetensors": "0.8.0",
        "numpy": "2.4.6",
        "nvidia-ml-py": "13.615.71",
    },
    torch=Torch("2.13.0", cuda="13.0", hip=None),
    nvml_module="/srv/venv/lib/python3.12/site-packages/pynvml.py",
    nvml_module_complete=True,
    variables={},
    kernels="",
)
CPU_TORCH = Torch("2.13.0+cpu", cuda=None, hip=None)
HOST = Host(
    total=128 * GIB,
    available=117 * GIB,
    swap_total=8 * GIB,
    swap_free=8 * GIB,
    hugepages=0,
    hugepage_bytes=2 * MIB,
    groups=(),
    memlock=16 * GIB,
)
CPU = Cpu(
    model="AMD EPYC 7543P 32-Core Processor",
    logical=64,
    physical=32,
    online=64,
    quota="max",
    omp_num_threads=None,
    isa=("f16c", "fma", "avx2"),
    driver="acpi-cpufreq",
    governor="schedutil",
    max_hz=2_800_000_000,
    hardware_max_hz=2_800_000_000,
    nodes=(0,),
    own_nodes=(0,),
)
ARM = replace(
    CPU, model=None, isa=("asimd", "asimddp", "sve2", "bf16", "i8mm"), driver="cppc_cpufreq"
)
STORAGE = Storage("/srv/models", "/srv", "ext4", total=1800 * GIB, free=640 * GIB)


def gpu(name: str, memory_mib: int | None, generation: int, /, **changes: Any) -> Gpu:
    """An idle card on a x16 link that is awake."""
    memory = None
    if memory_mib is not None:
        total = memory_mib * MIB
        memory = MemoryUse(total, used=4 * MIB, free=total - 404 * MIB, reserved=400 * MIB)
    base = Gpu(
        index=0,
        uuid="GPU-00000000-1111-2222-3333-444444444444",
        name=name,
        address="0000:65:00.0",
        capability="8.6",
        memory=memory,
        link=GpuLink(generation, 16, generation, 16, generation),
        utilization=0.0,
        performance_state=8,
        clock_events=("gpu_idle",),
        mig=None,
        mig_instances=(),
        virtualization="none",
        addressing="none",
        ecc_uncorrected=0,
        remap=RowRemap(0, 0, pending=False, failed=False),
        persistence=True,
        processes=0,
        graphics=(),
        errors={"mig": "NotSupported"},
    )
    return replace(base, **changes)


def link(generation: int, width: int, best: int, lanes: int) -> dict[str, Any]:
    """The link of a Gen`best` card in a slot of `lanes`."""
    return {"link": GpuLink(generation, width, best, lanes, best)}


def lacking(reason: str, *fields: str, **more: str) -> dict[str, Any]:
    """Fields without an answer, and why."""
    gone: dict[str, Any] = {
        name: (GpuLink(None, None, None, None, None) if name == "link" else None) for name in fields
    }
    errors = {field: reason for field in fields if field != "link"}
    if "link" in fields:
        errors |= {f"link.{name}": reason for name in LINK_FIELDS}
    return {**gone, "errors": errors | more}


def card(generation: int, now: int, width: int, slot: int, node: int | None = 0) -> PciCard:
    """A x16 card in a slot of `slot` lanes, directly under a root port."""
    return PciCard(
        device="0x2236",
        numa_node=node,
        ports=(
            PciPort("0000:65:00.0", now, width, generation, 16),
            PciPort("0000:64:00.0", now, width, generation, slot),
        ),
    )


def driver(*gpus: Gpu, version: str = "580.95.05", cuda: str = "13.0", p2p: str = "ok") -> Nvml:
    """A driver that works."""
    peers = tuple(Peers((a.index, b.index), p2p) for a, b in combinations(gpus, 2))
    return Nvml("ok", None, f"13.{version}", version, cuda, gpus, peers)


def load(
    ports: tuple[PciPort, ...], rate: float, *, replays: int = 0, refused: int | None = None
) -> Load:
    """Copies over a link that is wide awake; page-locking `refused` bytes fails."""
    sizes = (64 * MIB, 256 * MIB, GIB)
    pins = [PinTrial(size, None) for size in sizes if refused is None or size < refused]
    if refused is not None:
        pins.append(PinTrial(refused, "CUDA_ERROR_OUT_OF_MEMORY in cuMemHostAlloc"))
    generation, width = (ports[0].generation, ports[0].width) if ports else (4, 16)
    copied = LinkLoad("0000:65:00.0", rate, generation, width, replays, ports, None)
    return Load((copied,), tuple(pins))


def broken(state: str, message: str) -> Nvml:
    """A driver that does not."""
    return Nvml(state, message, None, None, None, ())


def machine(nvml: Nvml | None, *cards: PciCard, **changes: Any) -> HardwareSnapshot:
    """A server with 128 GiB and 32 cores."""
    base = HardwareSnapshot(
        timestamp=1796040000.0,
        software=SOFTWARE,
        host=HOST,
        cpu=CPU,
        storage=STORAGE,
        pci=cards,
        nvml=nvml,
        problems=(),
        seconds={"nvml": 0.08, "pci": 0.002},
    )
    return replace(base, **changes)
