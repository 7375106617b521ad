"""Limits of control groups: both versions, every ancestor, the words for no limit."""

import pytest
from fake_machine import MEMINFO, MOUNTS_V1, MOUNTS_V2, fake_machine

from miractl.probe import cgroup, host
from miractl.probe.facts import MemoryGroup

MIB = 2**20
V2 = {"/proc/self/mountinfo": MOUNTS_V2, "/proc/self/cgroup": "0::/a/b\n"}
V1 = {
    "/proc/self/mountinfo": MOUNTS_V1,
    "/proc/self/cgroup": "4:memory:/a/b\n3:cpu,cpuacct:/a/b\n0::/\n",
}


def group(folder: str, **values: object) -> dict[str, str]:
    return {f"{folder}/{name.replace('__', '.')}": f"{text}\n" for name, text in values.items()}


def test_no_cgroups_is_no_limit() -> None:
    files = {"/proc/self/mountinfo": "", "/proc/self/cgroup": ""}
    assert cgroup.memory_groups(fake_machine(files)) == ()
    assert cgroup.cpu_quota(fake_machine(files)) == "max"


def test_version_2_looks_at_every_ancestor() -> None:
    files = {
        **V2,
        **group("/sys/fs/cgroup/a/b", memory__max="max", memory__current=5 * MIB),
        **group("/sys/fs/cgroup/a", memory__max=256 * MIB, memory__current=200 * MIB),
        "/sys/fs/cgroup/a/memory.stat": f"anon 1\nfile 2\ninactive_file {50 * MIB}\n",
    }
    (found,) = cgroup.memory_groups(fake_machine(files))
    assert found == MemoryGroup("/sys/fs/cgroup/a", 256 * MIB, 200 * MIB, 50 * MIB)
    assert found.available == 106 * MIB


def test_version_1_and_its_word_for_no_limit() -> None:
    base = "/sys/fs/cgroup/memory"
    names = {"memory__usage_in_bytes": 10 * MIB}
    files = {
        **V1,
        **group(f"{base}/a/b", memory__limit_in_bytes=9223372036854771712, **names),
        **group(f"{base}/a", memory__limit_in_bytes=128 * MIB, **names),
        **group(base, memory__limit_in_bytes=9223372036854771712, **names),
    }
    found = cgroup.memory_groups(fake_machine(files))
    assert found == (MemoryGroup(f"{base}/a", 128 * MIB, 10 * MIB, None),)


def test_a_container_that_sees_only_its_subtree() -> None:
    mounts = MOUNTS_V1.replace("/ /sys/fs/cgroup/memory", "/docker/abc /sys/fs/cgroup/memory")
    files = {
        "/proc/self/mountinfo": mounts,
        "/proc/self/cgroup": "4:memory:/docker/abc\n",
        **group("/sys/fs/cgroup/memory", memory__limit_in_bytes=64 * MIB),
    }
    (found,) = cgroup.memory_groups(fake_machine(files))
    assert (found.limit, found.available) == (64 * MIB, None)


@pytest.mark.parametrize(
    ("texts", "quota"),
    [
        ({"a/b": "max 100000"}, "max"),
        ({"a/b": "765000 100000"}, 7.65),
        ({"a/b": "max 100000", "a": "50000 100000"}, 0.5),
        ({"a/b": "200000 100000", "a": "400000 100000"}, 2.0),
        ({"a/b": "garbage"}, "max"),
    ],
)
def test_quota_of_version_2(texts: dict[str, str], quota: float | str) -> None:
    files = {**V2, **{f"/sys/fs/cgroup/{path}/cpu.max": text for path, text in texts.items()}}
    assert cgroup.cpu_quota(fake_machine(files)) == quota


@pytest.mark.parametrize(("number", "quota"), [(-1, "max"), (150000, 1.5)])
def test_quota_of_version_1(number: int, quota: float | str) -> None:
    folder = "/sys/fs/cgroup/cpu,cpuacct/a/b"
    files = {**V1, **group(folder, cpu__cfs_quota_us=number, cpu__cfs_period_us=100000)}
    assert cgroup.cpu_quota(fake_machine(files)) == quota


def test_the_host_counts_the_tightest_group() -> None:
    files = {
        **V2,
        "/proc/meminfo": MEMINFO,
        "/proc/self/limits": "Max locked memory         unlimited            unlimited   bytes\n",
        **group("/sys/fs/cgroup/a/b", memory__max=400 * MIB, memory__current=10 * MIB),
        **group("/sys/fs/cgroup/a", memory__max=600 * MIB, memory__current=500 * MIB),
    }
    found = host.probe(fake_machine(files))
    assert (found.total, found.limit, found.free) == (1024 * MIB, 400 * MIB, 100 * MIB)
    assert (found.hugepages, found.hugepage_bytes, found.memlock) == (3, 2 * MIB, "max")
    assert found.swap_total is None


def test_without_a_limit_the_host_counts() -> None:
    found = host.probe(fake_machine({**V2, "/proc/meminfo": MEMINFO}))
    assert (found.limit, found.free) == (1024 * MIB, 512 * MIB)
