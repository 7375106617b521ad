"""Properties of all checks, and how they are run."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from finding import BY_ID, find
from machine_parts import CPU, CPU_TORCH, SOFTWARE, card, driver, link, machine
from machines import A10, MACHINES

from miractl.doctor.check import Check, Finding, Option, Remedy, Status, Subject, examine, ok
from miractl.doctor.docs import checks_page
from miractl.doctor.registry import CHECKS, choose
from miractl.doctor.report import Report, docs_anchor
from miractl.errors import UsageError
from miractl.probe.devices import PciCard, PciPort
from miractl.probe.server import ServerAnswer
from miractl.profiles import list_profiles, load_profile

DOCS = Path(__file__).parents[2] / "docs"
ALLOWED = {
    "info": {Status.OK, Status.SKIP, Status.UNKNOWN},
    "warning": {Status.OK, Status.SKIP, Status.UNKNOWN, Status.WARN},
    "failure": set(Status) - {Status.CRASH},
}


def made(run: object, id_: str = "x.one", needs: tuple[str, ...] = ()) -> Check:
    return Check(id_, "title", "x", "failure", run, "about", "source", None, needs)  # type: ignore[arg-type]


def test_ids_are_unique_and_needs_come_first() -> None:
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids)
    for check in CHECKS:
        assert all(ids.index(need) < ids.index(check.id) for need in check.needs)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_what_can_be_found_can_be_mended(check: Check) -> None:
    assert check.severity == "info" or (check.remedy is not None and check.remedy.text)


@pytest.mark.parametrize("name", MACHINES)
def test_no_verdict_is_worse_than_its_severity(name: str) -> None:
    for result in examine(Subject(MACHINES[name]), choose((), ()), CHECKS):
        assert result.finding.status in ALLOWED[result.check.severity], result.check.id
        assert result.finding.status not in (Status.WARN, Status.FAIL) or result.remedy


def test_the_page_of_checks_is_current() -> None:
    assert (DOCS / "checks.md").read_text(encoding="utf-8") == checks_page()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_every_check_has_its_anchor(check: Check) -> None:
    anchor = docs_anchor(check.id).partition("#")[2]
    assert f'<a id="{anchor}"></a>' in checks_page()


def test_a_check_that_crashes_is_a_finding() -> None:
    def run(subject: Subject) -> Finding:
        raise ZeroDivisionError("oh")

    checks = (made(run), made(lambda subject: ok("fine"), "x.two"))
    first, second = examine(Subject(MACHINES["no-gpu"]), checks, checks)
    assert first.finding.status is Status.CRASH
    assert "ZeroDivisionError: oh" in first.finding.text
    assert second.finding.status is Status.OK
    assert Report(MACHINES["no-gpu"], None, (first, second)).exit_code == 1


@pytest.mark.parametrize("status", [Status.FAIL, Status.WARN, Status.UNKNOWN])
def test_what_needs_something_that_is_not_ok_is_skipped(status: Status) -> None:
    checks = (
        made(lambda subject: Finding(status, "bad", remedy=Remedy("mend"))),
        made(lambda subject: ok("fine"), "x.two", ("x.one",)),
    )
    (result,) = examine(Subject(MACHINES["no-gpu"]), checks[1:], checks)
    assert result.finding == Finding(Status.SKIP, "needs x.one")


@pytest.mark.parametrize(
    ("fail_on", "verdict", "code"),
    [
        *(("fail", Status.FAIL, 1), ("fail", Status.WARN, 0), ("fail", Status.UNKNOWN, 0)),
        *(("warn", Status.WARN, 1), ("warn", Status.UNKNOWN, 0), ("never", Status.FAIL, 0)),
    ],
)
def test_exit_codes(fail_on: str, verdict: Status, code: int) -> None:
    checks = (made(lambda subject: Finding(verdict, "so")),)
    results = tuple(examine(Subject(MACHINES["no-gpu"]), checks, checks))
    assert Report(MACHINES["no-gpu"], None, results, fail_on).exit_code == code  # type: ignore[arg-type]


def test_choice() -> None:
    assert [check.id for check in choose(("gpu.mig", "py.version", "gpu.mig"), ())] == [
        "gpu.mig",
        "py.version",
    ]
    everything = {check.id for check in choose((), get_args(Option))}
    assert everything == set(BY_ID)
    with pytest.raises(UsageError, match=r"did you mean 'pcie\.width'"):
        choose(("pcie.wdth",), ())
    with pytest.raises(UsageError, match="--profile"):
        choose(("profile.match",), ())


@pytest.mark.parametrize(
    ("changes", "generation", "width"),
    [
        (link(1, 16, 4, 16), "unknown", "ok"),
        (link(1, 1, 4, 16), "unknown", "unknown"),
        (link(4, 8, 4, 16), "ok", "warn"),
        ({**link(1, 8, 4, 16), "utilization": 0.9}, "warn", "warn"),
        (
            {
                **link(1, 16, 4, 16),
                "utilization": None,
                "performance_state": None,
                "clock_events": None,
            },
            "unknown",
            "ok",
        ),
    ],
)
def test_a_slow_link_is_only_a_fault_when_awake(
    changes: dict[str, object], generation: str, width: str
) -> None:
    examined = machine(driver(replace(A10, **changes)), card(4, 4, 16, 16))  # type: ignore[arg-type]
    assert find("pcie.gen", examined).status == generation
    assert find("pcie.width", examined).status == width


def test_a_slot_of_an_older_generation() -> None:
    slow = replace(A10, link=replace(A10.link, generation=3, max_generation=3))
    found = find("pcie.slot", machine(driver(slow), card(4, 3, 16, 16)))
    assert found.text == (
        "card can do Gen4 x16, this slot gives Gen3 x16: at most 15.8 GB/s instead of 31.5 GB/s"
    )


def test_without_sysfs_a_matching_profile_knows_the_card() -> None:
    narrow = machine(driver(replace(A10, **link(4, 8, 4, 8))))
    assert find("pcie.slot", narrow).status == "unknown"
    assert find("pcie.slot", narrow, profile=load_profile("a10")).status == "warn"
    assert find("pcie.slot", narrow, profile=load_profile("l40s")).status == "unknown"


def switched(upstream: PciPort) -> PciCard:
    ports = (PciPort("0000:65:00.0", 1, 16, 4, 16), PciPort("0000:64:01.0", 1, 16, 4, 16))
    return PciCard("0x2236", 0, (*ports, upstream))


@pytest.mark.parametrize(
    ("upstream", "load", "verdict"),
    [
        (PciPort("0000:63:00.0", 4, 16, 4, 16), 0.0, "ok"),
        (PciPort("0000:63:00.0", 4, 8, 4, 8), 0.0, "warn"),
        (PciPort("0000:63:00.0", 4, 8, 4, 16), 0.9, "warn"),
        (PciPort("0000:63:00.0", 1, 16, 4, 16), 0.0, "unknown"),
        (PciPort("0000:63:00.0", None, None, None, None), 0.0, "unknown"),
    ],
)
def test_ports_above_the_slot(upstream: PciPort, load: float, verdict: str) -> None:
    gpu = replace(A10, utilization=load, **link(1, 16, 4, 16))
    found = find("pcie.upstream", machine(driver(gpu), switched(upstream)))
    assert found.status == verdict
    assert verdict != "warn" or "0000:63:00.0" in found.text


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"governor": "powersave", "driver": "acpi-cpufreq"}, "warn"),
        ({"governor": "powersave", "driver": "intel_pstate"}, "ok"),
        ({"governor": None}, "unknown"),
        ({"max_hz": 1_000_000_000}, "warn"),
    ],
)
def test_clock_of_the_processor(changes: dict[str, object], verdict: str) -> None:
    examined = machine(None, cpu=replace(CPU, **changes))  # type: ignore[arg-type]
    assert find("cpu.freq", examined).status == verdict


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"packages": {}}, "warn"),
        ({"packages": {"nvidia-ml-py": "11.525.84"}}, "warn"),
        ({"packages": {"nvidia-ml-py": "13.615.71", "pynvml": "11.5.0"}}, "warn"),
        ({"packages": {"nvidia-ml-py": "12.535.133"}}, "ok"),
    ],
)
def test_binding(changes: dict[str, object], verdict: str) -> None:
    examined = machine(None, software=replace(SOFTWARE, **changes))  # type: ignore[arg-type]
    assert find("py.nvml-binding", examined).status == verdict


@pytest.mark.parametrize(
    ("packages", "builds", "verdict", "said"),
    [
        ({}, {}, "skip", "none is installed of torchvision"),
        ({"torchvision": "0.28.0"}, {"torchvision": "2.13.0"}, "ok", "built for torch 2.13.0"),
        ({"torchvision": "0.28.0+cu130"}, {"torchvision": "2.13.0"}, "ok", "torchvision"),
        ({"torchvision": "0.28.0+cu126"}, {"torchvision": "2.13.0"}, "warn", "with CUDA 12.6"),
        ({"torchvision": "0.28.0+cpu"}, {"torchvision": "2.13.0"}, "warn", "with no CUDA"),
        (
            {"torchaudio": "2.8.0"},
            {"torchaudio": "2.8.0"},
            "warn",
            "for torch 2.8.0; torch is 2.13",
        ),
        ({"flash-attn": "2.8.3"}, {}, "unknown", "flash-attn: not said for which torch"),
        ({"flash-attn": "2.8.3+cu13torch2.13cxx11abiTRUE"}, {}, "ok", "flash-attn"),
        ({"flash-attn": "2.8.3+cu12torch2.13cxx11abiTRUE"}, {}, "warn", "with CUDA 12"),
        ({"flash-attn": "2.8.3+cu13torch2.1cxx11abiTRUE"}, {}, "warn", "for torch 2.1;"),
    ],
)
def test_builds_for_another_torch(
    packages: dict[str, str], builds: dict[str, str], verdict: str, said: str
) -> None:
    changed = replace(SOFTWARE, packages=SOFTWARE.packages | packages, torch_builds=builds)
    found = find("py.extensions", machine(None, software=changed))
    assert found.status == verdict
    assert said in found.text


def test_a_cpu_build_of_torch_wants_extensions_without_cuda() -> None:
    def verdict(version: str) -> str:
        packages = SOFTWARE.packages | {"torchvision": version}
        builds = {"torchvision": "2.13.0"}
        changes = {"packages": packages, "torch_builds": builds, "torch": CPU_TORCH}
        examined = machine(None, software=replace(SOFTWARE, **changes))  # type: ignore[arg-type]
        return str(find("py.extensions", examined).status)

    assert (verdict("0.28.0+cpu"), verdict("0.28.0+cu130")) == ("ok", "warn")


@pytest.mark.parametrize(
    ("value", "verdict"), [("1", "warn"), ("0", "ok"), ("", "ok"), (None, "ok")]
)
def test_variables_that_hurt(value: str | None, verdict: str) -> None:
    variables = {} if value is None else {"CUDA_LAUNCH_BLOCKING": value}
    examined = machine(None, software=replace(SOFTWARE, variables=variables))
    assert find("env.bad-vars", examined).status == verdict


@pytest.mark.parametrize(
    ("machine_name", "better"),
    [
        *(("a100-40g", "a100"), ("h100", "h100"), ("h200", "h200"), ("t4", "t4")),
        *(("l40s-switch", "l40s"), ("rtx3090-desktop", "rtx3090"), ("gh200", "default")),
        ("no-gpu", None),
    ],
)
def test_a_profile_for_another_gpu_names_the_better_one(
    machine_name: str, better: str | None
) -> None:
    profiles = tuple(map(load_profile, list_profiles()))
    subject = Subject(MACHINES[machine_name], load_profile("a10"), profiles)
    (result,) = examine(subject, [BY_ID["profile.match"]], CHECKS)
    assert result.finding.status is Status.WARN
    assert result.remedy is not None
    assert result.remedy.commands == (f"miractl serve --profile {better or 'cpu'}",)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (ServerAnswer("u", 200, '{"status":"ok"}', None), "ok"),
        (ServerAnswer("u", 503, '{"status":"loading"}', None), "unknown"),
        (ServerAnswer("u", 503, '{"status":"dead"}', None), "fail"),
        (ServerAnswer("u", 404, "", None), "fail"),
        (ServerAnswer("u", None, "", "Connection refused"), "fail"),
    ],
)
def test_health_of_a_server(answer: ServerAnswer, verdict: str) -> None:
    assert find("server.health", MACHINES["no-gpu"], server=answer).status == verdict


@pytest.mark.parametrize(
    ("kernels", "status", "says"),
    [
        ("", Status.OK, "pass their self-test"),
        ("this miractl was built without its CPU kernels", Status.WARN, "built without"),
        (None, Status.UNKNOWN, "was not asked"),
    ],
)
def test_the_cpu_kernels(kernels: str | None, status: Status, says: str) -> None:
    found = find("native.library", machine(None, software=replace(SOFTWARE, kernels=kernels)))
    assert found.status is status
    assert says in found.text
