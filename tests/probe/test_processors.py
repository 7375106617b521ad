"""Processors: cores behind the mask, quota, OMP_NUM_THREADS, clocks, nodes."""

import pytest
from fake_machine import MOUNTS_V2, fake_machine

from miractl.probe import cpu
from miractl.probe.facts import Cpu
from miractl.probe.machine import cpu_list

BASE = "/sys/devices/system/cpu"
FILES = {
    "/proc/cpuinfo": "processor : 0\nmodel name : A CPU\nflags : fpu avx2 fma amx_tile\n",
    "/proc/self/mountinfo": MOUNTS_V2,
    "/proc/self/cgroup": "0::/\n",
    f"{BASE}/online": "0-7\n",
    **{f"{BASE}/cpu{n}/topology/thread_siblings_list": f"{n % 4},{n % 4 + 4}\n" for n in range(8)},
    **{f"{BASE}/cpu{n}/cpufreq/scaling_max_freq": "2000000\n" for n in range(8)},
    **{f"{BASE}/cpu{n}/cpufreq/cpuinfo_max_freq": "3000000\n" for n in range(8)},
    f"{BASE}/cpu0/cpufreq/scaling_governor": "powersave\n",
    f"{BASE}/cpu0/cpufreq/scaling_driver": "acpi-cpufreq\n",
    "/sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
    "/sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
}


def probe(mask: set[int], more: dict[str, str] | None = None, **environ: str) -> Cpu:
    files = {**FILES, **(more or {})}
    return cpu.probe(fake_machine(files, affinity=lambda: mask, environ=environ))


def test_facts() -> None:
    found = probe({0, 1, 4, 5})
    assert (found.model, found.isa) == ("A CPU", ("fma", "avx2", "amx_tile"))
    assert (found.logical, found.physical, found.online) == (4, 2, 8)
    assert (found.driver, found.governor) == ("acpi-cpufreq", "powersave")
    assert (found.max_hz, found.hardware_max_hz) == (2_000_000_000, 3_000_000_000)
    assert (found.nodes, found.own_nodes) == ((0, 1), (0,))


@pytest.mark.parametrize(
    ("mask", "quota", "omp", "threads"),
    [
        (range(8), "max 100000", "", 4),
        (range(4), "max 100000", "", 4),
        ({0, 4}, "max 100000", "", 1),
        (range(8), "765000 100000", "", 4),
        (range(8), "290000 100000", "", 2),
        (range(8), "50000 100000", "", 1),
        (range(8), "max 100000", "3", 3),
        (range(8), "max 100000", "6,2", 6),
        (range(8), "max 100000", "many", 4),
        (range(8), "max 100000", "0", 4),
    ],
)
def test_threads(mask: set[int], quota: str, omp: str, threads: int) -> None:
    found = probe(set(mask), {"/sys/fs/cgroup/cpu.max": quota}, OMP_NUM_THREADS=omp)
    assert found.threads == threads


def test_what_is_not_shown_is_unknown() -> None:
    plain = {name: FILES[name] for name in FILES if name.startswith("/proc")}
    found = cpu.probe(fake_machine(plain, affinity=lambda: {0, 1}))
    unknown = (found.physical, found.governor, found.max_hz, found.nodes, found.own_nodes)
    assert unknown == (None,) * 5
    assert found.recommended_threads == 2


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3,8\n", {0, 1, 2, 3, 8}), ("", set()), ("5", {5})],
)
def test_kernel_lists(text: str, numbers: set[int]) -> None:
    assert cpu_list(text) == numbers
