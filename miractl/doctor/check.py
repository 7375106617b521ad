"""A check is data, its verdict a finding, and the examined machine their subject.

Checks are pure functions of the subject. What could not be probed is `unknown`, never good or bad;
a check whose ground is missing is a `skip`; one that crashes is a finding like any other.
"""

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NoReturn

from miractl.doctor.checkpoint import Checkpoint
from miractl.probe.configuration import Configuration
from miractl.probe.devices import Gpu, Load, Nvml, PciCard
from miractl.probe.facts import Cpu, DiskRate, HardwareSnapshot, Host, Software, Storage
from miractl.probe.port import PortAnswer
from miractl.probe.server import ServerAnswer
from miractl.probe.visible import visible
from miractl.profiles import Profile

# Fields of a snapshot that take an option to be filled.
MEASURED = {"load": "--load ", "disk_rate": "--disk . "}
Option = Literal["profile", "model", "server", "port", "load", "disk"]


class Status(StrEnum):
    """Verdicts, from the one that matters most to the one that matters least."""

    CRASH = "crash"
    FAIL = "fail"
    WARN = "warn"
    UNKNOWN = "unknown"
    OK = "ok"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do, in words and in commands that can be typed as they are. Nothing runs them."""

    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict: a line that says what, and the two values it rests on."""

    status: Status
    text: str
    observed: str | None = None
    expected: str | None = None
    remedy: Remedy | None = None  # None: the check's own


class NotProbedError(Exception):
    """A check asked for facts that no probe could get."""

    def __init__(self, probe: str) -> None:
        super().__init__(probe)
        self.probe = probe


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined. Its facts raise NotProbedError when their probe failed."""

    machine: HardwareSnapshot
    profile: Profile | None = None
    profiles: tuple[Profile, ...] = ()  # others that might fit better
    server: ServerAnswer | None = None
    port: PortAnswer | None = None
    configuration: Configuration | None = None
    checkpoint: Checkpoint | None = None

    @property
    def nvml(self) -> Nvml:
        """What NVML answered."""
        return self.machine.nvml or _missing("nvml")

    @property
    def pci(self) -> tuple[PciCard, ...]:
        """NVIDIA cards on the bus, driver or not."""
        return _missing("pci") if self.machine.pci is None else self.machine.pci

    @property
    def host(self) -> Host:
        """Memory."""
        return self.machine.host or _missing("host")

    @property
    def cpu(self) -> Cpu:
        """Processors."""
        return self.machine.cpu or _missing("cpu")

    @property
    def storage(self) -> Storage:
        """The file system in use."""
        return self.machine.storage or _missing("storage")

    @property
    def load(self) -> Load:
        """What was measured while copying."""
        return self.machine.load or _missing("load")

    @property
    def disk_rate(self) -> DiskRate:
        """What was measured while reading."""
        return self.machine.disk_rate or _missing("disk_rate")

    @property
    def software(self) -> Software:
        """System and packages."""
        return self.machine.software or _missing("software")

    @property
    def has_gpu(self) -> bool:
        """Whether NVML shows a GPU, or the bus an NVIDIA card."""
        return bool(self.machine.nvml and self.machine.nvml.gpus) or bool(self.pci)


def _missing(probe: str) -> NoReturn:
    raise NotProbedError(probe)


@dataclass(frozen=True, slots=True)
class Check:
    """One question about the subject.

    `severity` is the worst that it can find. `only_with` names the option without which it is not
    asked. A check whose `needs` are not all ok is skipped.
    """

    id: str
    title: str
    category: str
    severity: Literal["info", "warning", "failure"]
    run: Callable[[Subject], Finding]
    about: str
    source: str
    remedy: Remedy | None = None
    needs: tuple[str, ...] = ()
    only_with: Option | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A check and what it found."""

    check: Check
    finding: Finding
    traceback: str | None = field(default=None, compare=False)

    @property
    def remedy(self) -> Remedy | None:
        """What to do about it, if anything is to be done."""
        if self.finding.remedy or self.finding.status not in (Status.WARN, Status.FAIL):
            return self.finding.remedy
        return self.check.remedy


def ok(text: str, observed: str | None = None, expected: str | None = None) -> Finding:
    """All is well."""
    return Finding(Status.OK, text, observed, expected)


def skip(text: str) -> Finding:
    """The question does not arise here."""
    return Finding(Status.SKIP, text)


def unknown(text: str, observed: str | None = None, remedy: Remedy | None = None) -> Finding:
    """It cannot be told from here."""
    return Finding(Status.UNKNOWN, text, observed, remedy=remedy)


def _not_probed(check: Check, machine: HardwareSnapshot, probe: str) -> Finding:
    problem = machine.problem(probe)
    if problem is None:
        return unknown("not measured" if probe in MEASURED else f"the {probe} probe has no record")
    command = f"miractl doctor {MEASURED.get(probe, '')}--timeout 60 {check.id}"
    longer = Remedy("Give it more time:", (command,))
    is_late = problem.startswith("no answer within")
    return unknown(f"the {probe} probe failed: {problem}", remedy=longer if is_late else None)


def _examine(check: Check, subject: Subject) -> Result:
    try:
        return Result(check, check.run(subject))
    except NotProbedError as missing:
        return Result(check, _not_probed(check, subject.machine, missing.probe))
    except Exception as error:
        text = f"this check itself is broken: {type(error).__name__}: {error}"
        return Result(check, Finding(Status.CRASH, text), traceback.format_exc())


def examine(subject: Subject, checks: Iterable[Check], known: Sequence[Check]) -> list[Result]:
    """Results of `checks`, in the order of `known`, where their needs are looked up.

    Needs come before what needs them in `known`; they are examined even when not asked for.
    """
    wanted = {check.id for check in checks}
    needed = {need for check in known if check.id in wanted for need in check.needs}
    done: dict[str, Result] = {}
    for check in known:
        if check.id not in wanted | needed:
            continue
        missing = [n for n in check.needs if done[n].finding.status is not Status.OK]
        if missing:
            done[check.id] = Result(check, skip(f"needs {', '.join(missing)}"))
        else:
            done[check.id] = _examine(check, subject)
    return [result for id_, result in done.items() if id_ in wanted]


Judge = Callable[[Subject, Gpu], Finding]


def each_gpu(judge: Judge) -> Callable[[Subject], Finding]:
    """A check of every GPU that CUDA shows, or of all when that cannot be told.

    The worst finding counts; GPUs with the same words share them.
    """

    def run(subject: Subject) -> Finding:
        gpus, software = subject.nvml.gpus, subject.machine.software
        shown = visible(gpus, software.variables) if software else None
        gpus = gpus if shown is None else shown
        if not gpus:
            return skip("CUDA_VISIBLE_DEVICES hides every GPU")
        findings = {gpu.index: judge(subject, gpu) for gpu in gpus}
        return _merge(findings) if len(findings) > 1 else next(iter(findings.values()))

    return run


def _merge(findings: dict[int, Finding]) -> Finding:
    order = list(Status)
    worst = min(findings.values(), key=lambda finding: order.index(finding.status))
    groups: dict[str, list[str]] = {}
    for index, finding in findings.items():
        groups.setdefault(finding.text, []).append(str(index))
    text = "; ".join(f"GPU {', '.join(indices)}: {text}" for text, indices in groups.items())
    return Finding(worst.status, text, worst.observed, worst.expected, worst.remedy)
