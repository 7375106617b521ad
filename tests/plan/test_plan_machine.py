"""The machine to plan for: measured, given, from a profile, each with its origin."""

from dataclasses import replace
from pathlib import Path

import pytest

from miractl.errors import UsageError
from miractl.plan.machine import Given, PlanMachine, Quantity, machine_for
from miractl.probe import codec
from miractl.profiles import load_profile
from miractl.units import GIB, MIB

HW = Path(__file__).parent.parent / "fixtures" / "hw"


def recorded(name: str, profile: str | None = None, device: str = "auto") -> PlanMachine:
    snapshot = codec.load(str(HW / f"{name}.json"))
    return machine_for(snapshot, load_profile(profile) if profile else None, None, device)


def test_a_measured_gpu() -> None:
    machine = recorded("a10-x8-load")
    assert (machine.name, machine.device) == ("NVIDIA A10", "cuda")
    assert machine.gpu_memory.origin == "measured"
    assert machine.gpu_free.size < machine.gpu_memory.size
    assert machine.link.origin == "measured"
    assert machine.link.value is not None
    assert 10e9 < machine.link.value < 15.8e9
    assert machine.narrow == (8, 16)


def test_what_the_planning_process_has_is_counted_as_free() -> None:
    snapshot = codec.load(str(HW / "container-limited.json"))
    assert snapshot.host is not None
    assert snapshot.host.free is not None
    for own, free in ((256 * MIB, snapshot.host.free + 256 * MIB), (64 * GIB, snapshot.host.limit)):
        mine = replace(snapshot, host=replace(snapshot.host, own=own))
        assert machine_for(mine, device="cpu").host_free.size == free


def test_a_link_at_rest_has_a_theory_and_no_rate() -> None:
    machine = recorded("a10-x16")
    assert machine.narrow is None
    assert not machine.link.is_known
    assert machine.link_theory.value == pytest.approx(31.5e9, rel=0.01)


def test_an_upstream_bridge_limits_the_theory() -> None:
    assert recorded("l40s-switch").link_theory.value == pytest.approx(15.75e9, rel=0.01)


def test_the_limit_of_a_control_group_is_the_memory() -> None:
    machine = recorded("container-limited")
    assert machine.host_memory == Quantity(2 * GIB, "control group")
    assert machine.in_one_memory


@pytest.mark.parametrize("name", ["gb10", "gh200", "jetson"])
def test_unified_memory_is_the_hosts(name: str) -> None:
    machine = recorded(name, "a10")
    assert machine.unified
    assert machine.memory == machine.host_memory


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("driver-mismatch", "a GPU cannot be used"),
        ("gpu-lost", "a GPU cannot be used"),
        ("nvml-hangs", "a GPU cannot be used"),
        ("wsl2", "WSL2: page-locked memory is limited"),
        ("mig", "MIG: the plan is for the first instance"),
        ("a10-cpu-torch", "is built without CUDA: serve would run on the CPU"),
    ],
)
def test_what_is_odd_is_said(name: str, note: str) -> None:
    assert any(note in text for text in recorded(name).notes)


def test_no_gpu_and_nothing_odd() -> None:
    assert recorded("no-gpu").notes == ()


def test_wsl_caps_page_locked_memory() -> None:
    assert recorded("wsl2").pin_budget == 512 * 2**20


def test_a_profile_stands_in_for_a_gpu_that_is_not_here() -> None:
    machine = recorded("no-gpu", "a100")
    assert machine.gpu_memory == Quantity(40 * 10**9, "profile a100")
    assert machine.name == "NVIDIA A100"
    assert not machine.link.is_known
    assert machine.link_theory.origin == "profile a100, on paper"
    assert any("--device cpu" in note for note in machine.notes)
    assert recorded("no-gpu", "a100", "cpu").device == "cpu"
    assert recorded("no-gpu", "default").device == "cpu"


def test_a_profile_does_not_overrule_a_gpu() -> None:
    assert recorded("rtx4090", "a100") == recorded("rtx4090")


def test_what_is_given_wins() -> None:
    snapshot = codec.load(str(HW / "a10-x8-load.json"))
    given = Given(gpu_memory=80 * GIB, host_memory=GIB, link=1e9, disk=2e9, cores=3)
    machine = machine_for(snapshot, load_profile("a10"), given)
    assert machine.name == "a GPU of 80 GiB"
    assert machine.gpu_memory == machine.gpu_free == Quantity(80 * GIB, "given")
    assert machine.host_memory == Quantity(GIB, "given")
    assert machine.pin_budget == GIB // 2
    assert (machine.link.value, machine.disk.value, machine.cores.value) == (1e9, 2e9, 3)


def test_devices() -> None:
    assert recorded("two-cards", device="cuda:0").device == "cuda"
    assert recorded("a10-x16", device="cpu").device == "cpu"
    with pytest.raises(UsageError, match="cuda:7 is not there"):
        recorded("a10-x16", device="cuda:7")
    with pytest.raises(UsageError, match="unknown device 'tpu'"):
        recorded("a10-x16", device="tpu")


def test_every_recorded_machine_makes_one() -> None:
    for path in sorted(HW.glob("*.json")):
        assert isinstance(recorded(path.stem, "a10"), PlanMachine), path
