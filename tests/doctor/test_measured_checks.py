"""Checks of what was measured: links under load, page-locked memory, disks."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from finding import find
from machine_parts import GIB, HOST, MIB, SOFTWARE, STORAGE, card, driver, link, load, machine
from machines import A10, FOLDER, MACHINES

from miractl.doctor.pinned import rounded
from miractl.probe import snapshot
from miractl.probe.devices import Load, PciCard, PciPort, PinTrial
from miractl.probe.facts import DiskRate, HardwareSnapshot, MemoryGroup, ProbeProblem
from miractl.probe.machine import Machine
from miractl.profiles import load_profile

Run = Callable[..., Result]


def loaded(now: int, width: int, rate: float, slot: int = 16, **more: Any) -> HardwareSnapshot:
    """An idle A10 at Gen1, and what its link did while copying."""
    idle = driver(replace(A10, **link(1, 1, 4, slot)))
    copied = load(card(4, now, width, slot).ports, rate, **more)
    return machine(idle, card(4, 1, 1, slot), load=copied)


@pytest.mark.parametrize(
    ("now", "lanes", "generation", "width"),
    [(4, 16, "ok", "ok"), (3, 16, "warn", "ok"), (4, 8, "ok", "warn"), (1, 1, "warn", "warn")],
)
def test_a_load_ends_all_doubt_about_the_link(
    now: int, lanes: int, generation: str, width: str
) -> None:
    examined = loaded(now, lanes, 10e9)
    asleep = replace(examined, load=None)
    for id_, verdict in (("pcie.gen", generation), ("pcie.width", width)):
        assert find(id_, asleep).status == "unknown"
        assert find(id_, examined).status == verdict
        assert "while copying" in find(id_, examined).text


def test_a_copy_that_was_not_watched_says_nothing_of_the_link() -> None:
    whole = loaded(4, 16, 25e9)
    assert whole.load is not None
    blind = replace(whole.load.links[0], generation=None, width=None, ports=())
    examined = replace(whole, load=Load((blind,), ()))
    assert find("pcie.gen", examined).status == "unknown"
    assert find("pcie.width", examined).status == "unknown"
    # Held against what card and slot can do, not against the idle link.
    assert find("pcie.rate", examined).expected == "26.8 GB/s"


def test_a_copy_that_only_sysfs_watched() -> None:
    whole = loaded(3, 16, 13e9)
    assert whole.load is not None
    copied = replace(whole.load.links[0], generation=None, width=None)
    found = find("pcie.gen", replace(whole, load=Load((copied,), ())))
    assert (found.status, found.text) == ("warn", "Gen3 while copying, Gen4 possible")


def test_idle_links_name_the_measurement() -> None:
    for id_ in ("pcie.gen", "pcie.width"):
        remedy = find(id_, replace(loaded(4, 16, 1.0), load=None)).remedy
        assert remedy is not None
        assert remedy.commands == (f"miractl doctor --load {id_}",)


@pytest.mark.parametrize(
    ("rate", "verdict"), [(31.5e9, "ok"), (26.8e9, "ok"), (21.5e9, "ok"), (21.3e9, "warn")]
)
def test_a_rate_is_held_against_85_percent_of_theory(rate: float, verdict: str) -> None:
    found = find("pcie.rate", loaded(4, 16, rate))
    assert found.status == verdict
    assert found.expected == "26.8 GB/s"


def test_a_rate_is_held_against_the_narrowest_link_on_the_way() -> None:
    ports = (*card(4, 4, 16, 16).ports, PciPort("0000:63:00.0", 4, 8, 4, 16))
    sleepy = (*card(4, 1, 16, 16).ports, PciPort("0000:63:00.0", 1, 8, 4, 16))
    examined = machine(
        driver(replace(A10, **link(1, 16, 4, 16))),
        PciCard("0x2236", 0, sleepy),
        load=load(ports, 13e9),
    )
    assert find("pcie.rate", examined).expected == "13.4 GB/s"
    upstream = find("pcie.upstream", examined)
    assert upstream.status == "warn"
    assert "0000:63:00.0 above the slot carries 15.8 GB/s while copying" in upstream.text


def test_a_hypervisors_bridge_is_no_measure() -> None:
    bridge = PciPort("0000:00:02.0", 1, 1, 1, 1)
    ports = (PciPort("0000:65:00.0", 4, 16, 4, 16), bridge)
    examined = machine(driver(A10), PciCard("0x2236", None, ports), load=load(ports, 25e9))
    assert find("pcie.rate", examined).status == "ok"


def test_a_rate_above_the_links_own_is_no_health() -> None:
    found = find("pcie.rate", loaded(3, 16, 25e9))
    assert (found.status, found.observed) == ("unknown", None)
    assert "more than the 15.8 GB/s of the link that is shown" in found.text


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [({"replays": 0}, "ok"), ({"replays": 1}, "warn"), ({"replays": None}, "unknown")],
)
def test_packets_sent_again(changes: dict[str, Any], verdict: str) -> None:
    whole = loaded(4, 16, 26e9)
    assert whole.load is not None
    copied = replace(whole.load.links[0], **changes)
    assert find("pcie.replay", replace(whole, load=Load((copied,), ()))).status == verdict


@pytest.mark.parametrize("id_", ["pcie.rate", "pcie.replay"])
def test_why_there_is_no_measurement(id_: str) -> None:
    whole = loaded(4, 16, 26e9)
    assert whole.load is not None
    failed = replace(whole.load.links[0], rate=None, error="CUDA_ERROR_OUT_OF_MEMORY")
    for made, words in (
        (Load((failed,), ()), "CUDA_ERROR_OUT_OF_MEMORY"),
        (Load((), ()), "no such card"),
        (None, "not measured"),
    ):
        found = find(id_, replace(whole, load=made))
        assert found.status == "unknown"
        assert words in found.text
    late = (ProbeProblem("load", "no answer within 30 s"),)
    remedy = find(id_, replace(whole, load=None, problems=late)).remedy
    assert remedy is not None
    assert remedy.commands == (f"miractl doctor --load --timeout 60 {id_}",)


@pytest.mark.parametrize("name", ["gb10", "gh200", "vgpu", "no-gpu"])
def test_no_rate_where_the_way_is_not_pcie(name: str) -> None:
    assert find("pcie.rate", MACHINES[name]).status == "skip"


@pytest.mark.parametrize(
    ("size", "taken"), [(0, 0), (1, 1), (64, 64), (65, 128), (9_437_184, 2**24), (2**30 + 1, 2**31)]
)
def test_page_locking_rounds_up(size: int, taken: int) -> None:
    assert rounded(size) == taken


def test_rounding_of_all_experts_of_a_model() -> None:
    # 128 experts of 48 layers, 9 MiB each, take 1.78 times their size.
    assert 48 * 128 * rounded(9 * MIB) / (48 * 128 * 9 * MIB) == pytest.approx(1.78, abs=0.01)


@pytest.mark.parametrize(
    ("free", "wsl", "pins", "verdict"),
    [
        (8 * GIB, False, (), "ok"),
        (400 * MIB, False, (), "warn"),
        (8 * GIB, True, (), "ok"),
        (8 * GIB, False, (PinTrial(64 * MIB, None), PinTrial(256 * MIB, "no")), "warn"),
        (8 * GIB, False, (PinTrial(256 * MIB, None), PinTrial(GIB, "no")), "ok"),
        (8 * GIB, True, (PinTrial(64 * MIB, "no"),), "warn"),
    ],
)
def test_page_locked_memory(free: int, wsl: bool, pins: tuple[PinTrial, ...], verdict: str) -> None:
    examined = machine(
        driver(A10),
        host=replace(HOST, available=free),
        software=replace(SOFTWARE, wsl=wsl),
        load=Load((), pins) if pins else None,
    )
    assert find("host.pinned", examined).status == verdict


def test_the_ring_of_the_profile_is_what_counts() -> None:
    wsl = machine(driver(A10), software=replace(SOFTWARE, wsl=True))
    big = find("host.pinned", wsl, profile=replace(load_profile("a100"), values=A_BIG_RING))
    assert big.status == "warn"
    assert big.text.startswith("the ring of 400 MB, rounded up, takes at most 763 MiB")


A_BIG_RING = {"dma_buffer_size_mb": 400}


def test_a_group_that_hides_its_use_leaves_the_budget_unknown() -> None:
    hidden = replace(HOST, groups=(MemoryGroup("/x", GIB, None, None),))
    assert find("host.pinned", machine(driver(A10), host=hidden)).status == "unknown"
    assert find("host.pinned", MACHINES["gb10"]).status == "skip"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "ok"),
        ({"disk_rate": DiskRate(9e9, MIB, direct=False, temporary=True)}, "unknown"),
        ({"storage": None}, "ok"),
        ({"storage": replace(STORAGE, filesystem="tmpfs")}, "ok"),
        ({"disk_rate": None}, "unknown"),
        ({"disk_rate": None, "problems": (ProbeProblem("disk_rate", "OSError: no"),)}, "unknown"),
    ],
)
def test_the_rate_of_a_disk(changes: dict[str, Any], verdict: str) -> None:
    rate = DiskRate(2.9e9, 256 * MIB, direct=True, temporary=False)
    assert find("disk.read", machine(None, **{"disk_rate": rate, **changes})).status == verdict


def test_memory_is_not_called_a_disk() -> None:
    rate = DiskRate(9e9, 256 * MIB, direct=True, temporary=True)
    storage = replace(STORAGE, filesystem="tmpfs")
    assert (
        "no disk (tmpfs)" in find("disk.read", machine(None, disk_rate=rate, storage=storage)).text
    )


@pytest.mark.parametrize(
    ("status", "words", "verdict"),
    [
        ("ok", "GPU 0-1: direct", "ok"),
        ("GPU not supported", "GPU 0-1: by the host (GPU not supported)", "ok"),
        (None, "n/a", "unknown"),
    ],
)
def test_gpu_to_gpu(status: Any, words: str, verdict: str) -> None:
    second = replace(A10, index=1, address="0000:b1:00.0")
    found = find("pcie.p2p", machine(driver(A10, second, p2p=status)))
    assert found.status == verdict
    assert words in found.text


def test_the_command_measures_on_request(miractl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    idle, measured = MACHINES["a10-x8-idle"], MACHINES["a10-x8-load"]
    assert measured.load is not None

    def take(*, measure: snapshot.Measure, **_: Any) -> HardwareSnapshot:
        return measured if measure.load else idle

    monkeypatch.setattr(snapshot, "take", take)
    assert "? pcie.gen" in miractl("doctor", "pcie.gen").stdout
    assert "✓ pcie.gen  Gen4 while copying" in miractl("doctor", "--load", "pcie.gen").stdout


def test_load_without_a_gpu_is_skipped_aloud(miractl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRACTL_FAKE_HW", str(FOLDER / "no-gpu.json"))
    result = miractl("doctor", "--load", "pcie.rate")
    assert result.stderr == "--load: there is no GPU to copy to\n"
    assert "skipped: needs driver.nvml" in result.stdout
    assert result.exit_code == 0


@pytest.mark.parametrize("arguments", [("--disk", "disk.read"), ("disk.read", "--disk")])
def test_a_check_after_disk_is_no_path(
    arguments: tuple[str, ...], miractl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRACTL_FAKE_HW", str(FOLDER / "rtx3090-desktop.json"))
    report = json.loads(miractl("doctor", "--json", *arguments).stdout)
    assert [check["id"] for check in report["checks"]] == ["disk.read"]


def test_usage(miractl: Run, tmp_path: Path) -> None:
    assert miractl("doctor", "--disk", str(tmp_path / "no")).exit_code == 2
    assert "check pcie.rate needs --load" in miractl("doctor", "pcie.rate").stderr
    assert miractl("doctor", "--port", "0").exit_code == 2


def test_a_measured_machine_still_opens_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRACTL_FAKE_HW", str(FOLDER / "a10-x8-load.json"))
    taken = snapshot.take(Machine(), measure=snapshot.Measure(load=True, disk=True))
    assert taken == MACHINES["a10-x8-load"]
