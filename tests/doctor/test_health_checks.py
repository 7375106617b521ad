"""Checks of a card's health, of what CUDA shows, and of what the user sets and names."""

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from finding import find
from machine_parts import GIB, HOST, MIB, SOFTWARE, driver, machine
from machines import A10, FOLDER, MACHINES

from miractl.doctor.checkpoint import Checkpoint, CheckpointFault
from miractl.probe.configuration import Configuration
from miractl.probe.devices import RowRemap
from miractl.probe.facts import MemoryGroup
from miractl.probe.port import PortAnswer

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("id_", "changes", "verdict"),
    [
        ("gpu.ecc", {"ecc_uncorrected": 0}, "ok"),
        ("gpu.ecc", {"ecc_uncorrected": 1}, "fail"),
        ("gpu.ecc", {"ecc_uncorrected": None}, "unknown"),
        ("gpu.ecc", {"ecc_uncorrected": None, "errors": {"ecc_uncorrected": "Unknown"}}, "unknown"),
        (
            "gpu.ecc",
            {"ecc_uncorrected": None, "errors": {"ecc_uncorrected": "NotSupported"}},
            "skip",
        ),
        ("gpu.remap", {"remap": RowRemap(3, 1, pending=False, failed=False)}, "ok"),
        ("gpu.remap", {"remap": RowRemap(0, 1, pending=True, failed=False)}, "warn"),
        ("gpu.remap", {"remap": RowRemap(0, 9, pending=True, failed=True)}, "warn"),
        ("gpu.persistence", {"persistence": False}, "warn"),
        ("gpu.persistence", {"persistence": False, "graphics": (None,)}, "ok"),
        ("gpu.persistence", {"persistence": None}, "unknown"),
    ],
)
def test_health(id_: str, changes: dict[str, Any], verdict: str) -> None:
    assert find(id_, machine(driver(replace(A10, **changes)))).status == verdict


@pytest.mark.parametrize(
    ("compute", "graphics", "words"),
    [
        (0, (), "22.5 GiB"),
        (2, None, ", 2 compute processes"),
        (1, (MIB, 3 * MIB), ", 1 compute process, 2 graphics processes (4 MiB)"),
        (None, (None,), ", 1 graphics process"),
    ],
)
def test_who_uses_the_memory(compute: int, graphics: Any, words: str) -> None:
    examined = machine(driver(replace(A10, processes=compute, graphics=graphics)))
    assert find("gpu.memory", examined).text.endswith(words)


@pytest.mark.parametrize(
    ("setting", "verdict", "words"),
    [
        (None, "ok", "one GPU"),
        ("0", "ok", "1 of 1 shown"),
        ("", "warn", "hides every GPU: CPU mode"),
        ("-1", "warn", "hides every GPU: CPU mode"),
        ("1", "warn", "hides every GPU: '1' is no GPU here: CPU mode"),
        ("0,5", "warn", "'5' is no GPU here, and CUDA reads no further"),
        ("GPU-0000,none", "warn", "'none' is no GPU here"),
    ],
)
def test_how_many_gpus_are_shown(setting: str | None, verdict: str, words: str) -> None:
    variables = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    examined = machine(driver(A10), software=replace(SOFTWARE, variables=variables))
    found = find("gpu.count", examined)
    assert found.status == verdict
    assert words in found.text


WHOLE = Checkpoint("tiny", 2, (), 3 * GIB, 20 * GIB, GIB)
WORTH_KNOWING = CheckpointFault("lm_head.weight is there; it is not used", None, fatal=False)
CUT = CheckpointFault("x ends at byte 7", "download the file again", fatal=True)


@pytest.mark.parametrize(
    ("faults", "verdict", "text"),
    [
        ((), "ok", "tiny: 2 files, whole"),
        ((WORTH_KNOWING,), "warn", WORTH_KNOWING.text),
        ((CUT, WORTH_KNOWING), "fail", "x ends at byte 7 (and 1 more)"),
    ],
)
def test_the_files_of_a_model(faults: tuple[CheckpointFault, ...], verdict: str, text: str) -> None:
    found = find("model.files", MACHINES["no-gpu"], checkpoint=replace(WHOLE, faults=faults))
    assert (found.status, found.text) == (verdict, text)
    assert (found.remedy and found.remedy.text) == (
        "Download the file again." if verdict == "fail" else None
    )


@pytest.mark.parametrize(
    ("changes", "free", "gpu", "verdict"),
    [
        ({}, 25 * GIB, False, "ok"),
        ({}, 23 * GIB, False, "warn"),
        ({}, 3 * GIB, False, "fail"),
        ({}, 20 * GIB, True, "ok"),
        ({}, 19 * GIB, True, "warn"),
        ({"resident_bytes": 30 * GIB}, 100 * GIB, True, "fail"),
        ({"resident_bytes": 30 * GIB}, 100 * GIB, False, "ok"),
        ({"expert_bytes": None}, 100 * GIB, True, "unknown"),
        ({"faults": (WORTH_KNOWING,)}, 25 * GIB, False, "ok"),
        ({"faults": (CUT,)}, 25 * GIB, False, "skip"),
    ],
)
def test_whether_a_model_fits(changes: dict[str, Any], free: int, gpu: bool, verdict: str) -> None:
    examined = machine(driver(*([A10] if gpu else [])), host=replace(HOST, available=free))
    found = find("model.memory", examined, checkpoint=replace(WHOLE, **changes))
    assert found.status == verdict


def test_a_model_in_memory_that_is_hidden() -> None:
    hidden = replace(HOST, groups=(MemoryGroup("/x", 50 * GIB, None, None),))
    found = find("model.memory", machine(driver(A10), host=hidden), checkpoint=WHOLE)
    assert found.status == "unknown"


def test_a_folder_that_is_no_model(
    tmp_path: Path, miractl: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRACTL_FAKE_HW", str(FOLDER / "no-gpu.json"))
    result = miractl("doctor", "--model", str(tmp_path), "--json", "model.files", "model.memory")
    files, memory = json.loads(result.stdout)["checks"]
    assert (files["status"], memory["status"], result.exit_code) == ("fail", "skip", 1)
    assert "config.json" in files["text"]
    assert miractl("doctor", "--model", "some/model", "model.files").exit_code == 2


def test_settings_and_ports() -> None:
    wrong = Configuration("c.yaml", None, None, "c.yaml:1: unknown key 'prot'")
    fine = Configuration("c.yaml", "a10", "file c.yaml:1", None)
    none = MACHINES["no-gpu"]
    assert find("config.keys", none, configuration=wrong).status == "fail"
    assert find("config.keys", none, configuration=wrong).text == wrong.error
    assert "profile a10" in find("config.keys", none, configuration=fine).text
    taken = find("server.port", none, port=PortAnswer(8000, "Address already in use", 8001))
    assert (taken.status, taken.remedy and taken.remedy.commands) == (
        "fail",
        ("miractl serve --port 8001",),
    )
    assert find("server.port", none, port=PortAnswer(8000, None, 8000)).status == "ok"


def test_a_port_that_is_taken_fails(miractl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRACTL_FAKE_HW", str(FOLDER / "no-gpu.json"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        result = miractl("doctor", "--port", str(port), "server.port")
    assert result.exit_code == 1
    assert f"port {port} cannot be had: Address already in use" in result.stdout
