"""NVML's answers, its errors and its nonsense, through the code that asks the real module."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from fake_machine import A10, FakeNvml, fake_machine, memory

from miractl.own_python import command_for
from miractl.probe import nvml
from miractl.probe.devices import Gpu, GpuLink, MemoryUse, Nvml, Peers, RowRemap


def read(**answers: Any) -> Nvml:
    return nvml.read(FakeNvml({**A10, **answers}))


def gpu(**answers: Any) -> Gpu:
    return read(**answers).gpus[0]


def test_all_answers() -> None:
    found = read()
    assert (found.state, found.driver, found.cuda) == ("ok", "580.95.05", "13.0")
    card = found.gpus[0]
    assert (card.name, card.uuid, card.address) == ("NVIDIA A10", "GPU-1", "0000:65:00.0")
    assert card.capability == "8.6"
    assert card.memory == MemoryUse(total=1000, used=100, free=900, reserved=50)
    assert card.link == GpuLink(1, 8, 4, 8, 4)
    assert (card.utilization, card.performance_state) == (0.37, 8)
    assert card.clock_events == ("gpu_idle", "hw_thermal")
    assert (card.virtualization, card.addressing) == ("none", "none")
    assert (card.ecc_uncorrected, card.processes) == (0, 2)
    assert (card.graphics, card.persistence) == ((7, None), True)
    assert card.remap == RowRemap(1, 2, pending=False, failed=True)
    assert found.peers == ()
    assert card.errors == {"mig": "NotSupported"}


@pytest.mark.parametrize(
    "name",
    ["LibraryNotFound", "DriverNotLoaded", "LibRmVersionMismatch", "NoPermission", "Unknown"],
)
def test_a_failed_start_is_an_answer(name: str) -> None:
    found = read(nvmlInit=FakeNvml.error(name))
    assert (found.state, found.message, found.gpus) == (name, f"{name} happened", ())


def test_every_field_fails_alone() -> None:
    whole = gpu()
    for call in A10:
        if call.startswith("nvmlDeviceGet") and call not in (
            "nvmlDeviceGetCount",
            "nvmlDeviceGetHandleByIndex",
        ):
            card = gpu(**{call: FakeNvml.error("Unknown")})
            (field,) = card.errors.keys() - whole.errors.keys()
            lost = [f for f in Gpu.__dataclass_fields__ if getattr(card, f) != getattr(whole, f)]
            assert set(lost) - {"errors"} == {field.partition(".")[0]}, call


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("nvmlDeviceGetMemoryInfo", memory(0, 0)),
        ("nvmlDeviceGetMemoryInfo", memory(10, 99)),
        ("nvmlDeviceGetMemoryInfo", "none"),
        ("nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=4_000_000_000)),
        ("nvmlDeviceGetPerformanceState", 32),
        ("nvmlDeviceGetVirtualizationMode", 99),
        ("nvmlDeviceGetPciInfo", SimpleNamespace(busId="nowhere")),
        ("nvmlDeviceGetCudaComputeCapability", 0),
    ],
)
def test_nonsense_is_unknown(call: str, answer: Any) -> None:
    assert set(gpu(**{call: answer}).errors.values()) > {"NotSupported"}


@pytest.mark.parametrize("number", [0, 63, 255])
def test_a_link_that_cannot_be_is_unknown(number: int) -> None:
    card = gpu(nvmlDeviceGetCurrPcieLinkWidth=number, nvmlDeviceGetMaxPcieLinkGeneration=number)
    assert (card.link.width, card.link.max_generation) == (None, None)


def test_old_drivers_lack_the_second_version_of_memory() -> None:
    def info(handle: str, version: int | None = None) -> Any:
        return FakeNvml.error("FunctionNotFound") if version else memory(1000, 300)

    card = gpu(nvmlDeviceGetMemoryInfo=info)
    assert card.memory == MemoryUse(1000, 300, 700, None)
    assert "memory" not in card.errors


def test_old_bindings_have_the_old_name_of_clock_events() -> None:
    names = {
        "nvmlDeviceGetCurrentClocksEventReasons": AttributeError,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4,
    }
    assert gpu(**names).clock_events == ("sw_power_cap",)


def test_memory_that_is_not_supported_is_the_hosts() -> None:
    card = gpu(nvmlDeviceGetMemoryInfo=FakeNvml.error("NotSupported"))
    assert card.memory is None
    assert card.shares_host_memory


def test_mig_asks_the_instances() -> None:
    def instance(handle: str, number: int) -> Any:
        return f"slice-{number}" if number == 0 else FakeNvml.error("NotFound")

    def info(handle: str, version: int | None = None) -> Any:
        whole = FakeNvml.error("NoPermission")
        return whole if handle == "handle" else memory(200, 10, reserved=0)

    card = gpu(
        nvmlDeviceGetMigMode=[1, 1],
        nvmlDeviceGetMaxMigDeviceCount=7,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
        nvmlDeviceGetMemoryInfo=info,
    )
    assert card.mig
    assert card.memory is None
    assert [i.memory for i in card.mig_instances] == [MemoryUse(200, 10, 190, 0)]
    assert not card.shares_host_memory


def test_pairs_of_cards() -> None:
    answers = {("0", "1"): 0, ("0", "2"): 2, ("1", "2"): FakeNvml.error("NotSupported")}
    found = read(
        nvmlDeviceGetCount=3,
        nvmlDeviceGetHandleByIndex=str,
        nvmlDeviceGetP2PStatus=lambda first, second, capability: answers[first, second],
    )
    assert found.peers == (
        Peers((0, 1), "ok"),
        Peers((0, 2), "GPU not supported"),
        Peers((1, 2), None),
    )


def test_a_lost_card() -> None:
    card = gpu(
        **{
            call: FakeNvml.error("GpuIsLost")
            for call in A10
            if "DeviceGet" in call and call != "nvmlDeviceGetCount"
        }
    )
    assert card.lost
    assert card.name is None


def test_what_is_no_error_of_nvml_costs_one_field_only() -> None:
    class NVMLLibraryMismatchError(Exception):
        """As the binding raises it, beside its own hierarchy, under an old driver."""

    card = gpu(nvmlDeviceGetComputeRunningProcesses=NVMLLibraryMismatchError("unversioned"))
    assert card.processes is None
    assert card.errors["processes"] == "NVMLLibraryMismatchError"


def test_more_time_reaches_the_child() -> None:
    asked: list[float] = []

    def run(command: list[str], timeout: float) -> str:
        asked.append(timeout)
        raise ChildProcessError("exit code -11: no message")

    with pytest.raises(ChildProcessError):
        nvml.probe(fake_machine(nvml=None, run=run), 60.0)
    assert asked == [60.0]


def test_an_error_newer_than_the_binding_keeps_its_words() -> None:
    assert nvml.error_name(FakeNvml.NVMLError("brand new")) == "brand new"


def test_nvml_is_stopped() -> None:
    fake = FakeNvml(A10)
    nvml.read(fake)
    assert fake.calls[-1] == "nvmlShutdown"


def test_without_a_module_of_its_own_a_child_is_asked() -> None:
    asked: list[Any] = []

    def run(command: list[str], timeout: float) -> str:
        asked.append((command[1:], timeout))
        return (
            '{"state": "NoPermission", "message": "no", "version": null, "driver": null,'
            ' "cuda": null, "gpus": []}'
        )

    assert nvml.probe(fake_machine(nvml=None, run=run)).state == "NoPermission"
    assert asked == [(command_for("miractl.probe.nvml")[1:], nvml.PATIENCE_WITHOUT_DRIVER)]


def test_patience_where_a_driver_is_loaded() -> None:
    machine = fake_machine({"/proc/driver/nvidia/version": "NVRM"})
    assert nvml.patience(machine) == nvml.PATIENCE


def test_the_child_answers_on_any_machine() -> None:
    done = subprocess.run(
        command_for("miractl.probe.nvml"), capture_output=True, text=True, check=True
    )
    assert '"state": ' in done.stdout
