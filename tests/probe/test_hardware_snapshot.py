"""The whole snapshot: round trip, stand-in machine, probes that fail, hang or talk nonsense."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_machine import A10, MEMINFO, MOUNTS_V2, FakeNvml, fake_machine

from miractl.errors import UsageError
from miractl.probe import codec, snapshot
from miractl.probe.facts import HardwareSnapshot, ProbeProblem

FILES = {
    "/proc/meminfo": MEMINFO,
    "/proc/cpuinfo": "processor : 0\n",
    "/proc/self/mountinfo": MOUNTS_V2 + "27 1 254:0 / / rw - ext4 /dev/vda rw\n",
    "/proc/self/cgroup": "0::/\n",
    "/sys/bus/pci/devices/0000:00:00.0/vendor": "0x8086\n",
}


def take(files: dict[str, str] | None = None, **members: Any) -> HardwareSnapshot:
    machine = fake_machine(FILES if files is None else files, **{"nvml": FakeNvml(A10), **members})
    return snapshot.take(machine, path="/", patience=members.pop("patience", 5.0))


def test_round_trip() -> None:
    taken = take()
    assert taken.problems == ()
    assert codec.from_json(json.loads(json.dumps(codec.to_json(taken)))) == taken


def test_this_machine() -> None:
    taken = snapshot.take(patience=30.0)
    assert taken.problems == ()
    assert taken.host is not None
    assert taken.host.total > 0


@pytest.mark.parametrize(
    ("missing", "field"),
    [("/proc/meminfo", "host"), ("/proc/cpuinfo", "cpu")],
)
def test_a_probe_fails_alone(missing: str, field: str) -> None:
    taken = take({name: text for name, text in FILES.items() if name != missing})
    assert taken.problems == (ProbeProblem(field, f"FileNotFoundError: {missing}"),)
    assert [
        f
        for f in ("host", "cpu", "pci", "nvml", "storage", "software")
        if getattr(taken, f) is None
    ] == [field]


def test_a_probe_that_hangs_is_named_and_left_behind() -> None:
    release = threading.Event()
    hanging = FakeNvml({"nvmlInit": lambda: release.wait(30)})
    machine = fake_machine(FILES, nvml=hanging)
    try:
        taken = snapshot.take(machine, path="/", patience=0.3)
    finally:
        release.set()
    assert taken.problems == (ProbeProblem("nvml", "no answer within 0.3 s"),)
    assert taken.nvml is None
    assert taken.cpu is not None


def test_a_child_that_runs_out_of_time_is_a_probe_that_hangs() -> None:
    def run(command: list[str], timeout: float) -> str:
        raise TimeoutError

    taken = take(nvml=None, run=run)
    assert taken.problem("nvml") == "no answer within 5 s"


def test_a_child_that_talks_nonsense_is_a_problem() -> None:
    taken = take(nvml=None, run=lambda command, timeout: "Segmentation fault")
    assert (taken.problem("nvml") or "").startswith("JSONDecodeError")


def test_a_stand_in_machine(tmp_path: Path) -> None:
    taken = take()
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(codec.to_json(taken)))
    assert snapshot.take(fake_machine(environ={"MIRACTL_FAKE_HW": str(file)})) == taken


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("{", "Expecting"),
        ("[]", "schema is None"),
        ('{"schema": "miractl.hardware/9"}', "miractl.hardware/9"),
        ('{"schema": "miractl.hardware/1"}', "timestamp: "),
    ],
)
def test_a_stand_in_that_is_none(tmp_path: Path, text: str | None, reason: str) -> None:
    file = tmp_path / "machine.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError) as caught:
        snapshot.take(fake_machine(environ={"MIRACTL_FAKE_HW": str(file)}))
    assert reason in caught.value.message
    assert "\n" not in caught.value.message
