"""The measurement under load, from its child's answer to the snapshot; the child itself as well."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fake_machine import A10, MEMINFO, MOUNTS_V2, FakeNvml, fake_machine

from miractl.own_python import command_for
from miractl.probe import load, snapshot
from miractl.probe.cuda import CudaError
from miractl.probe.devices import LinkLoad, PinTrial
from miractl.probe.facts import HardwareSnapshot
from miractl.probe.snapshot import Measure

MIB = 2**20
CARD = "/sys/bus/pci/devices/0000:65:00.0"
FILES = {
    "/proc/meminfo": MEMINFO,
    "/proc/cpuinfo": "processor : 0\n",
    "/proc/self/mountinfo": MOUNTS_V2,
    "/proc/self/cgroup": "0::/\n",
    "/sys/bus/pci/devices/0000:00:00.0/vendor": "0x8086\n",
}
LINK = {
    "address": "0000:65:00.0",
    "rate": 13.1e9,
    "generation": 4,
    "width": 8,
    "replays": 0,
    "ports": [],
    "error": None,
}
ANSWER = {"links": [LINK], "pins": [{"size": 64 * MIB, "error": None}]}


def take(answer: Any = None, error: Exception | None = None, **members: Any) -> HardwareSnapshot:
    """A machine whose child says `answer`, and how it was called."""

    def run(command: list[str], timeout: float) -> str:
        assert command[:-1] == command_for("miractl.probe.load")
        if error is not None:
            raise error
        return answer if isinstance(answer, str) else json.dumps(answer)

    machine = fake_machine(FILES, **{"nvml": FakeNvml(A10), "run": run, **members})
    return snapshot.take(machine, path="/", patience=5.0, measure=Measure(load=True))


def test_the_childs_answer_becomes_facts() -> None:
    taken = take(ANSWER)
    assert taken.load is not None
    assert taken.nvml is not None
    assert taken.link_load(taken.nvml.gpus[0]) == taken.load.links[0]
    assert taken.load.links[0].rate == 13.1e9
    assert taken.load.largest_pin == 64 * MIB
    assert "load" in taken.seconds


@pytest.mark.parametrize(
    ("answer", "error", "problem"),
    [
        (None, TimeoutError(), "no answer within 5 s"),
        (None, ChildProcessError("exit code -11: no message"), "exit code -11"),
        ("Segmentation fault", None, "JSONDecodeError"),
        ("null", None, "ValueError: "),
        ({"links": [{**LINK, "rate": "fast"}], "pins": []}, None, "links.0.rate: "),
        ({"links": []}, None, "pins: Field required"),
    ],
)
def test_a_child_that_fails_leaves_a_snapshot(answer: Any, error: Any, problem: str) -> None:
    taken = take(answer, error)
    assert taken.load is None
    assert problem in (taken.problem("load") or "")
    assert "\n" not in (taken.problem("load") or "")
    assert taken.nvml is not None


@pytest.mark.parametrize("nvml", [FakeNvml({}), FakeNvml({"nvmlInit": FakeNvml.error("Unknown")})])
def test_without_a_gpu_no_child_is_started(nvml: FakeNvml) -> None:
    taken = take(error=AssertionError("started"), nvml=nvml)
    assert (taken.load, taken.problem("load")) == (None, None)


def test_a_child_gets_half_of_the_free_memory_to_pin() -> None:
    asked: list[str] = []

    def run(command: list[str], timeout: float) -> str:
        asked.append(command[-1])
        return json.dumps(ANSWER)

    take(run=run)
    assert asked == [str(256 * MIB)]  # of 512 MiB available


class FakeDriver:
    """Two cards; the second has no memory left."""

    def __init__(self, pin_limit: int = 2**40) -> None:
        self.pin_limit = pin_limit
        self.held = 0

    def devices(self) -> list[int]:
        return [0, 1]

    def address(self, device: int) -> str:
        return f"0000:{65 + device}:00.0"

    @contextmanager
    def current(self, device: int) -> Iterator[None]:
        self.device = device
        yield

    @contextmanager
    def pinned(self, size: int) -> Iterator[int]:
        if size > self.pin_limit:
            raise CudaError("refused")
        self.held += 1
        try:
            yield 0
        finally:
            self.held -= 1

    @contextmanager
    def memory(self, size: int) -> Iterator[int]:
        if self.device == 1:
            raise CudaError("CUDA_ERROR_OUT_OF_MEMORY in cuMemAlloc_v2")
        yield 0

    @contextmanager
    def event(self) -> Iterator[int]:
        yield 0

    def copy(self, target: int, source: int, size: int) -> None:
        pass

    def record(self, event: int) -> None:
        pass

    def seconds(self, start: int, end: int) -> float:
        return 0.01


def measure(driver: FakeDriver, at_most: int = 2**40, **answers: Any) -> load.Load:
    files = {
        f"{CARD}/current_link_speed": "16.0 GT/s PCIe\n",
        f"{CARD}/current_link_width": "8\n",
    }
    nvml = FakeNvml({"nvmlDeviceGetHandleByPciBusId": "handle", **answers})
    return load.measure(driver, nvml, fake_machine(files), at_most)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "SECONDS", 0.002)


def test_each_card_is_measured_and_fails_alone() -> None:
    generations, replays = iter([1, *[4] * 10_000]), iter([5, 9, 0, 0])
    found = measure(
        FakeDriver(),
        nvmlDeviceGetCurrPcieLinkGeneration=lambda handle: next(generations),
        nvmlDeviceGetCurrPcieLinkWidth=8,
        nvmlDeviceGetPcieReplayCounter=lambda handle: next(replays),
    )
    first, second = found.links
    assert first.rate == pytest.approx(128 * MIB / 0.01)
    assert (first.width, first.replays, first.error) == (8, 4, None)
    assert (first.ports[0].generation, first.ports[0].width) == (4, 8)
    error = "CUDA_ERROR_OUT_OF_MEMORY in cuMemAlloc_v2"
    assert second == LinkLoad("0000:66:00.0", None, None, None, None, (), error)


def test_nonsense_of_nvml_is_unknown() -> None:
    found = measure(FakeDriver(), nvmlDeviceGetCurrPcieLinkWidth=63)
    assert (found.links[0].width, found.links[0].generation) == (None, None)
    assert found.links[0].rate is not None


def test_pieces_are_tried_up_to_the_first_that_fails_and_given_back() -> None:
    driver = FakeDriver(pin_limit=100 * MIB)
    pins = measure(driver).pins
    assert pins == (PinTrial(64 * MIB, None), PinTrial(256 * MIB, "refused"))
    assert driver.held == 0
    assert measure(FakeDriver(), at_most=63 * MIB).pins == ()
