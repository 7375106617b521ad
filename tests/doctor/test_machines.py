"""Golden verdicts for every machine made by hand, and no crash whatever a probe does."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from click.testing import Result
from machines import FOLDER, MACHINES, PAGE, measured, page, text

from miractl.doctor.check import Status, Subject, examine
from miractl.doctor.registry import CHECKS, choose
from miractl.probe import codec
from miractl.probe.devices import Gpu
from miractl.probe.facts import HardwareSnapshot, ProbeProblem

Run = Callable[..., Result]
Golden = Callable[[str, str], None]
PROBES = ("software", "host", "cpu", "storage", "pci", "nvml", "load", "disk_rate")


OPTIONS = ("load", "disk")


def doctor(machine: HardwareSnapshot) -> dict[str, Status]:
    results = examine(Subject(machine), choose((), OPTIONS), CHECKS)
    return {result.check.id: result.finding.status for result in results}


def test_files_are_those_of_the_builder() -> None:
    on_disk = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert on_disk == {name: text(machine) for name, machine in MACHINES.items()}


def test_the_page_of_machines_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("form", ["table", "short", "json"])
def test_golden(
    name: str, form: str, golden: Golden, miractl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRACTL_FAKE_HW", str(FOLDER / f"{name}.json"))
    options = [f"--{option}" for option in measured(MACHINES[name])]
    result = miractl("doctor", "--format", form, *options)
    failed = Status.FAIL in doctor(MACHINES[name]).values()
    assert result.exit_code == int(failed)
    golden(f"doctor/{name}.{'json' if form == 'json' else form + '.txt'}", result.stdout)


@pytest.mark.parametrize("name", MACHINES)
def test_round_trip(name: str) -> None:
    assert codec.load(str(FOLDER / f"{name}.json")) == MACHINES[name]


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("no-gpu", {"driver.nvml": "warn", "torch.build": "ok", "pcie.slot": "skip"}),
        ("a10-x8-idle", {"pcie.gen": "unknown", "pcie.width": "ok", "pcie.slot": "warn"}),
        ("a10-x8-busy", {"pcie.gen": "ok", "pcie.width": "ok", "pcie.slot": "warn"}),
        ("a10-downtrained", {"pcie.width": "warn", "pcie.slot": "ok"}),
        ("l40s-switch", {"pcie.slot": "ok", "pcie.upstream": "warn"}),
        ("passthrough", {"pcie.slot": "ok", "pcie.upstream": "unknown"}),
        ("gb10", {"gpu.memory": "skip", "gpu.unified": "ok", "pcie.width": "skip"}),
        ("mig", {"gpu.mig": "warn", "gpu.memory": "ok"}),
        ("driver-too-old", {"driver.nvml": "ok", "driver.compat": "fail"}),
        ("driver-minor", {"driver.compat": "warn"}),
        ("driver-mismatch", {"driver.nvml": "fail", "gpu.memory": "skip"}),
        ("container-no-utility", {"driver.nvml": "fail"}),
        ("container-limited", {"host.ram": "warn", "cpu.threads": "warn"}),
        ("nvml-hangs", {"driver.nvml": "unknown", "host.ram": "ok"}),
        ("gpu-lost", {"gpu.memory": "fail"}),
        ("a10-cpu-torch", {"torch.build": "fail"}),
        ("two-cards", {"gpu.index": "warn", "host.numa": "warn"}),
    ],
)
def test_what_each_machine_is_about(name: str, verdicts: dict[str, str]) -> None:
    found = doctor(MACHINES[name])
    assert {check: found[check] for check in verdicts} == verdicts


@pytest.mark.parametrize(
    "name", ["a10-x16", "two-cards", "mig", "no-gpu", "a10-x8-load", "rtx3090-desktop"]
)
@pytest.mark.parametrize("probe", PROBES)
def test_a_failed_probe_is_unknown_and_never_a_verdict(name: str, probe: str) -> None:
    whole = MACHINES[name]
    problem = ProbeProblem(probe, "PermissionError: no")
    found = doctor(replace(whole, **{probe: None}, problems=(problem,)))
    before = doctor(whole)
    assert Status.CRASH not in found.values()
    changed = {id_: status for id_, status in found.items() if status != before[id_]}
    assert changed or probe == "pci" or getattr(whole, probe) is None
    assert set(changed.values()) <= {Status.UNKNOWN, Status.SKIP}


@pytest.mark.parametrize("probe", PROBES)
def test_no_probe_at_all_but_one(probe: str) -> None:
    whole = MACHINES["a10-x16"]
    gone = {name: None for name in PROBES if name != probe}
    assert Status.CRASH not in doctor(replace(whole, **gone)).values()


@pytest.mark.parametrize("field", [f.name for f in fields(Gpu) if f.default is not None])
def test_a_gpu_that_lacks_a_field(field: str) -> None:
    nvml = MACHINES["a10-x16"].nvml
    assert nvml is not None
    empty: dict[str, Any] = {
        "index": 0,
        "mig_instances": (),
        "errors": {},
        "link": nvml.gpus[0].link,
    }
    gpu = replace(nvml.gpus[0], **{field: empty.get(field)})
    machine = replace(MACHINES["a10-x16"], nvml=replace(nvml, gpus=(gpu,)))
    assert not {Status.CRASH, Status.FAIL} & set(doctor(machine).values())
