"""Machines made by hand: `python tests/doctor/machines.py` writes them to tests/fixtures/hw/.

Each is a plain server changed in what it is about. MIRACTL_FAKE_HW takes any of the files. It also
writes docs/machines.md, which says what the doctor finds on each.
"""

import json
from dataclasses import replace
from pathlib import Path

from machine_parts import (
    ARM,
    CPU,
    CPU_TORCH,
    GIB,
    HOST,
    MIB,
    SOFTWARE,
    broken,
    card,
    driver,
    gpu,
    lacking,
    link,
    load,
    machine,
)

from miractl.doctor.check import Status, Subject, examine
from miractl.doctor.registry import CHECKS, choose
from miractl.probe import codec
from miractl.probe.devices import MemoryUse, MigInstance, PciCard, PciPort, RowRemap
from miractl.probe.facts import DiskRate, HardwareSnapshot, MemoryGroup, ProbeProblem, Torch

FOLDER = Path(__file__).parent.parent / "fixtures" / "hw"

A10 = gpu("NVIDIA A10", 23028, 4)
AWAKE_X8 = card(4, 4, 8, 8).ports
BUSY = {
    "utilization": 0.97,
    "performance_state": 0,
    "clock_events": ("sw_power_cap",),
    "processes": 1,
}
NO_LIBRARY = broken("LibraryNotFound", "NVML Shared Library Not Found")
NO_DRIVER = replace(SOFTWARE, kernel_driver=None, torch=CPU_TORCH)
MIG_SLICES = tuple(
    MigInstance(
        f"MIG-0000000{n}-1111-2222-3333-444444444444",
        MemoryUse(20096 * MIB, 38 * MIB, 20058 * MIB, 0),
    )
    for n in range(2)
)
OTHER_CARD = PciCard(
    "0x2684", 1, (PciPort("0000:b1:00.0", 4, 16, 4, 16), PciPort("0000:b0:00.0", 4, 16, 5, 16))
)
SWITCHED = PciCard(
    "0x26b9",
    0,
    (
        PciPort("0000:65:00.0", 4, 16, 4, 16),
        PciPort("0000:64:01.0", 4, 16, 4, 16),
        PciPort("0000:63:00.0", 4, 8, 4, 8),
        PciPort("0000:62:00.0", 4, 8, 4, 16),
    ),
)
T4 = gpu(
    "Tesla T4",
    15360,
    3,
    capability="7.5",
    **lacking("NotSupported", "remap", mig="NotSupported"),
)
H100 = gpu("NVIDIA H100 PCIe", 81559, 5, capability="9.0", mig=False, errors={})

MACHINES: dict[str, HardwareSnapshot] = {
    "no-gpu": machine(NO_LIBRARY, software=NO_DRIVER),
    "no-driver": machine(NO_LIBRARY, card(4, 1, 16, 16), software=NO_DRIVER),
    "a10-x8-idle": machine(driver(replace(A10, **link(1, 8, 4, 8))), card(4, 1, 8, 8)),
    "a10-x8-busy": machine(driver(replace(A10, **link(4, 8, 4, 8), **BUSY)), card(4, 4, 8, 8)),
    "a10-x16": machine(driver(A10), card(4, 4, 16, 16)),
    "a10-downtrained": machine(
        driver(replace(A10, **link(4, 8, 4, 16), **BUSY)), card(4, 4, 8, 16)
    ),
    "a10-cpu-torch": machine(
        driver(A10), card(4, 4, 16, 16), software=replace(SOFTWARE, torch=CPU_TORCH)
    ),
    "a10-other-builds": machine(
        driver(A10),
        card(4, 4, 16, 16),
        software=replace(
            SOFTWARE,
            packages={
                **SOFTWARE.packages,
                "torchvision": "0.23.0",
                "flash-attn": "2.8.3+cu12torch2.8cxx11abiTRUE",
            },
            torch_builds={"torchvision": "2.8.0"},
        ),
    ),
    "a10-hot": machine(
        driver(replace(A10, clock_events=("gpu_idle", "hw_slowdown", "hw_thermal"))),
        card(4, 4, 16, 16),
    ),
    "a10-x8-load": machine(
        driver(replace(A10, **link(1, 8, 4, 8))), card(4, 1, 8, 8), load=load(AWAKE_X8, 13.1e9)
    ),
    "a10-sick": machine(
        driver(
            replace(
                A10,
                **link(1, 16, 4, 16),
                ecc_uncorrected=2,
                remap=RowRemap(1, 2, pending=True, failed=False),
                persistence=False,
            )
        ),
        card(4, 1, 16, 16),
        load=load(card(4, 3, 16, 16).ports, 6.4e9, replays=17),
    ),
    "rtx3090-desktop": machine(
        driver(
            gpu(
                "NVIDIA GeForce RTX 3090",
                24576,
                4,
                persistence=False,
                graphics=(310 * MIB, 96 * MIB),
                **lacking("NotSupported", "ecc_uncorrected", "remap", mig="NotSupported"),
            )
        ),
        card(4, 4, 16, 16),
        disk_rate=DiskRate(2.9e9, 256 * MIB, direct=True, temporary=False),
    ),
    "a100-40g": machine(
        driver(gpu("NVIDIA A100-PCIE-40GB", 40960, 4, capability="8.0", mig=False, errors={})),
        card(4, 4, 16, 16),
    ),
    "h100": machine(driver(H100), card(5, 5, 16, 16)),
    "h200": machine(driver(replace(H100, name="NVIDIA H200")), card(5, 5, 16, 16)),
    "l40s-switch": machine(driver(gpu("NVIDIA L40S", 46068, 4, capability="8.9")), SWITCHED),
    "rtx4090": machine(
        driver(
            gpu(
                "NVIDIA GeForce RTX 4090",
                24564,
                4,
                capability="8.9",
                **link(1, 16, 4, 16),
                **lacking("NotSupported", "ecc_uncorrected", "remap", mig="NotSupported"),
            )
        ),
        card(4, 1, 16, 16),
        cpu=replace(CPU, driver="intel_pstate", governor="powersave"),
    ),
    "t4": machine(
        driver(T4),
        card(3, 3, 16, 16),
        software=replace(
            SOFTWARE, packages={**SOFTWARE.packages, "pynvml": "13.0.1", "transformers": "4.57.0"}
        ),
    ),
    "two-cards": machine(
        driver(
            T4,
            gpu(
                "NVIDIA GeForce RTX 4090",
                24564,
                4,
                index=1,
                uuid="GPU-55555555-1111-2222-3333-444444444444",
                address="0000:b1:00.0",
                capability="8.9",
            ),
            p2p="GPU not supported",
        ),
        card(3, 3, 16, 16),
        OTHER_CARD,
        software=replace(SOFTWARE, variables={"CUDA_VISIBLE_DEVICES": "0"}),
        cpu=replace(CPU, nodes=(0, 1), own_nodes=(0,)),
    ),
    "mig": machine(
        driver(
            gpu(
                "NVIDIA A100-SXM4-40GB",
                None,
                4,
                capability="8.0",
                mig=True,
                mig_instances=MIG_SLICES,
                **lacking("NotSupported", "utilization", memory="NoPermission"),
            )
        ),
        card(4, 4, 16, 16),
    ),
    "vgpu": machine(
        driver(
            gpu(
                "NVIDIA A10-12Q",
                12288,
                4,
                virtualization="vgpu",
                **lacking("NotSupported", "link", "ecc_uncorrected", "remap", mig="NotSupported"),
            )
        ),
        card(4, 4, 16, 16, node=None),
    ),
    "passthrough": machine(
        driver(replace(A10, virtualization="passthrough")),
        PciCard(
            "0x2236",
            None,
            (PciPort("0000:65:00.0", 4, 16, 4, 16), PciPort("0000:00:02.0", 1, 1, 1, 1)),
        ),
        cpu=replace(CPU, driver=None, governor=None, max_hz=None, hardware_max_hz=None),
    ),
    "wsl2": machine(
        driver(
            gpu(
                "NVIDIA GeForce RTX 4090",
                24564,
                4,
                **lacking(
                    "NotSupported",
                    *("utilization", "processes", "graphics", "persistence", "addressing"),
                    *("ecc_uncorrected", "remap"),
                    mig="NotSupported",
                ),
            )
        ),
        software=replace(
            SOFTWARE, wsl=True, kernel="6.6.87.2-microsoft-standard-WSL2", kernel_driver=None
        ),
        cpu=replace(CPU, driver=None, governor=None, max_hz=None, hardware_max_hz=None),
    ),
    "wsl2-load": machine(
        driver(gpu("NVIDIA GeForce RTX 4090", 24564, 4)),
        software=replace(
            SOFTWARE, wsl=True, kernel="6.6.87.2-microsoft-standard-WSL2", kernel_driver=None
        ),
        cpu=replace(CPU, driver=None, governor=None, max_hz=None, hardware_max_hz=None),
        load=load((), 24.6e9, refused=256 * MIB),
    ),
    "gb10": machine(
        driver(
            gpu(
                "NVIDIA GB10",
                None,
                5,
                capability="12.1",
                addressing="ats",
                **lacking("NotSupported", "memory", "ecc_uncorrected", "remap", mig="NotSupported"),
            )
        ),
        card(5, 1, 1, 16),
        cpu=ARM,
    ),
    "gh200": machine(
        driver(
            gpu(
                "NVIDIA GH200 480GB",
                97871,
                5,
                capability="9.0",
                addressing="ats",
                mig=False,
                errors={},
            )
        ),
        card(5, 5, 16, 16),
        cpu=replace(ARM, nodes=(0, 1), own_nodes=(0,)),
    ),
    "jetson": machine(
        driver(
            gpu(
                "Orin (nvgpu)",
                None,
                4,
                uuid=None,
                capability="8.7",
                **lacking(
                    "NotSupported",
                    *("memory", "link", "utilization", "performance_state", "clock_events"),
                    *("virtualization", "addressing", "ecc_uncorrected", "processes", "address"),
                    *("remap", "persistence", "graphics"),
                    mig="NotSupported",
                ),
            ),
            version="540.4.0",
            cuda="12.6",
        ),
        software=replace(
            SOFTWARE,
            board="NVIDIA Jetson AGX Orin Developer Kit",
            kernel_driver="540.4.0",
            torch=Torch("2.8.0", "12.6", None),
        ),
        cpu=ARM,
    ),
    "driver-too-old": machine(
        driver(A10, version="535.104.05", cuda="12.2"),
        card(4, 4, 16, 16),
        software=replace(SOFTWARE, kernel_driver="535.104.05"),
    ),
    "driver-minor": machine(
        driver(A10, version="550.54.15", cuda="12.4"),
        card(4, 4, 16, 16),
        software=replace(SOFTWARE, kernel_driver="550.54.15", torch=Torch("2.13.0", "12.6", None)),
    ),
    "driver-mismatch": machine(
        broken("LibRmVersionMismatch", "RM has detected an NVML/RM version mismatch."),
        card(4, 4, 16, 16),
        software=replace(SOFTWARE, kernel_driver="570.172.08"),
    ),
    "gpu-lost": machine(
        driver(
            gpu(
                "",
                None,
                4,
                **lacking(
                    "GpuIsLost",
                    *("uuid", "name", "address", "capability", "memory", "link", "utilization"),
                    *("performance_state", "clock_events", "mig", "virtualization", "addressing"),
                    *("ecc_uncorrected", "processes", "remap", "persistence", "graphics"),
                ),
            )
        ),
        card(4, 4, 16, 16),
    ),
    "container-no-utility": machine(
        NO_LIBRARY,
        card(4, 4, 16, 16),
        software=replace(
            SOFTWARE, container="docker", variables={"NVIDIA_DRIVER_CAPABILITIES": "compute"}
        ),
    ),
    "container-limited": machine(
        NO_LIBRARY,
        software=replace(NO_DRIVER, container="kubernetes", variables={"OMP_NUM_THREADS": "48"}),
        host=replace(HOST, groups=(MemoryGroup("/sys/fs/cgroup", 2 * GIB, 900 * MIB, 300 * MIB),)),
        cpu=replace(CPU, quota=7.65, omp_num_threads=48),
    ),
    "nvml-hangs": machine(
        None,
        card(4, 4, 16, 16),
        problems=(ProbeProblem("nvml", "no answer within 5 s"),),
        seconds={"nvml": 5.0, "pci": 0.002},
    ),
}


def text(snapshot: HardwareSnapshot) -> str:
    """A machine as its file holds it."""
    return json.dumps(codec.to_json(snapshot), indent=1) + "\n"


def measured(snapshot: HardwareSnapshot) -> list[str]:
    """The options by which a machine's measurements were made."""
    made = {"load": snapshot.load, "disk": snapshot.disk_rate}
    return [option for option, found in made.items() if found is not None]


PAGE = Path(__file__).parents[2] / "docs" / "machines.md"
_INTRO = """\
# Machines

<!-- Generated: python tests/doctor/machines.py -->

What `miractl doctor` finds on machines made by hand, apart from what is well or does not apply.
Each is a file in tests/fixtures/hw/, and can stand in for the machine at hand:

```sh
MIRACTL_FAKE_HW=tests/fixtures/hw/a10-x8-idle.json miractl doctor
```

| machine | exit | findings |
|---|---|---|
"""


def page() -> str:
    """The table of all machines and their verdicts."""
    rows = []
    for name, snapshot in MACHINES.items():
        results = examine(Subject(snapshot), choose((), measured(snapshot)), CHECKS)
        told = [
            f"**{r.finding.status}** `{r.check.id}`: {r.finding.text}"
            for r in results
            if r.finding.status not in (Status.OK, Status.SKIP)
        ]
        failed = any(r.finding.status is Status.FAIL for r in results)
        rows.append(f"| {name} | {failed:d} | {'<br>'.join(told) or 'all is well'} |\n")
    return _INTRO + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, snapshot in MACHINES.items():
        (FOLDER / f"{name}.json").write_text(text(snapshot), encoding="utf-8")
