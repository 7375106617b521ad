"""One run of the doctor: what was found, in counts, as an exit code, as JSON."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from miractl import __version__
from miractl.doctor.check import Result, Status
from miractl.errors import ExitCode
from miractl.probe.facts import HardwareSnapshot

SCHEMA = "miractl.doctor/1"
FailOn = Literal["warn", "fail", "never"]
_FAILING: dict[FailOn, tuple[Status, ...]] = {
    "warn": (Status.CRASH, Status.FAIL, Status.WARN),
    "fail": (Status.CRASH, Status.FAIL),
    "never": (),
}


@dataclass(frozen=True, slots=True)
class Report:
    """Results in the order of the checks, and the machine they are about."""

    machine: HardwareSnapshot
    profile: str | None
    results: tuple[Result, ...]
    fail_on: FailOn = "fail"

    @property
    def counts(self) -> dict[Status, int]:
        """How often each verdict was given."""
        found = Counter(result.finding.status for result in self.results)
        return {status: found[status] for status in Status}

    @property
    def exit_code(self) -> ExitCode:
        """FAILED when a verdict is among those to fail on."""
        failing = any(self.counts[status] for status in _FAILING[self.fail_on])
        return ExitCode.FAILED if failing else ExitCode.OK

    def with_status(self, status: Status) -> list[Result]:
        """The results with this verdict."""
        return [result for result in self.results if result.finding.status is status]


def docs_anchor(check_id: str) -> str:
    """Where a check is explained."""
    return f"docs/checks.md#{check_id.replace('.', '-')}"


def _result(result: Result) -> dict[str, Any]:
    check, finding, remedy = result.check, result.finding, result.remedy
    return {
        "id": check.id,
        "category": check.category,
        "title": check.title,
        "status": finding.status,
        "text": finding.text,
        "observed": finding.observed,
        "expected": finding.expected,
        "source": check.source,
        "error": result.traceback,
        "remediation": remedy and {"text": remedy.text, "commands": list(remedy.commands)},
        "docs": docs_anchor(check.id),
    }


def _host(machine: HardwareSnapshot) -> dict[str, Any]:
    software, nvml = machine.software, machine.nvml
    return {
        "system": software and software.system,
        "kernel": software and software.kernel,
        "python": software and software.python,
        "driver": nvml and nvml.driver,
        "gpus": None if nvml is None else [gpu.name for gpu in nvml.gpus],
    }


def to_json(report: Report) -> dict[str, Any]:
    """The whole report, ready for JSON."""
    machine = report.machine
    return {
        "schema": SCHEMA,
        "version": __version__,
        "timestamp": machine.timestamp,
        "profile": report.profile,
        "success": report.exit_code is ExitCode.OK,
        "counts": {str(status): count for status, count in report.counts.items()},
        "host": _host(machine),
        "checks": [_result(result) for result in report.results],
        "probe_problems": {problem.probe: problem.error for problem in machine.problems},
        "probe_seconds": machine.seconds,
    }
