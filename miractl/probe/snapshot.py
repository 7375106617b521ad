"""Taking a snapshot: all probes at once, each with its own deadline, each failing alone.

Measurements, which are made only on request, come after them and one by one: they would disturb
what is being probed, and each other.

`MIRACTL_FAKE_HW=file.json` puts a recorded machine in place of this one, everywhere.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from miractl.probe import codec, cpu, disk_rate, host, load, nvml, pci, software, storage
from miractl.probe.facts import HardwareSnapshot, Host, ProbeProblem
from miractl.probe.machine import Machine

FAKE = "MIRACTL_FAKE_HW"
PATIENCE = 2.0  # files in /proc and /sys answer at once; a network file system may not
MARGIN = 0.1  # for a probe that ends its own child process when the time is over


@dataclass(frozen=True, slots=True)
class Probe:
    """What fills one field of the snapshot, and the seconds that it may take."""

    field: str
    read: Callable[[Machine], Any]
    patience: Callable[[Machine], float] = lambda machine: PATIENCE


@dataclass(frozen=True, slots=True)
class Measure:
    """What to measure besides probing: seconds of copying or reading each."""

    load: bool = False
    disk: bool = False


NOTHING = Measure()


def probes(path: str, patience: float | None) -> tuple[Probe, ...]:
    """All probes; `path` is the folder whose file system matters."""
    return (
        Probe("nvml", lambda machine: nvml.probe(machine, patience), nvml.patience),
        Probe("pci", pci.probe),
        Probe("host", host.probe),
        Probe("cpu", cpu.probe),
        Probe("storage", lambda machine: storage.probe(machine, path)),
        Probe("software", software.probe),
    )


def measurements(
    wanted: Measure, facts: dict[str, Any], path: str, patience: float | None
) -> Iterator[Probe]:
    """What was asked for and has something to measure."""
    found, memory = facts["nvml"], facts["host"]
    if wanted.load and found is not None and found.gpus:
        at_most = memory.pin_budget or 0 if isinstance(memory, Host) else 0
        yield Probe(
            "load",
            lambda machine: load.probe(machine, at_most, patience),
            lambda machine: load.PATIENCE,
        )
    if wanted.disk:
        yield Probe(
            "disk_rate", lambda machine: disk_rate.probe(path), lambda machine: disk_rate.PATIENCE
        )


class _Run(threading.Thread):
    """One probe at work. A daemon: what hangs is left behind when the process ends."""

    def __init__(self, probe: Probe, machine: Machine, patience: float | None) -> None:
        super().__init__(name=f"probe-{probe.field}", daemon=True)
        self.probe = probe
        self.machine = machine
        self.patience = probe.patience(machine) if patience is None else patience
        self.started = time.monotonic()
        # One tuple, set once at the end: a reader sees all of it or nothing.
        self.outcome: tuple[Any, str | None, float] | None = None

    def run(self) -> None:
        answer, error = None, None
        try:
            answer = self.probe.read(self.machine)
        except TimeoutError:
            return
        except Exception as problem:  # a probe must never take the others down
            error = f"{type(problem).__name__}: {problem}"
        self.outcome = answer, error, time.monotonic() - self.started

    def wait(self) -> tuple[Any, str | None, float]:
        """Answer, error and seconds, at the latest when its time is over."""
        self.join(max(0.0, self.started + self.patience + MARGIN - time.monotonic()))
        late = f"no answer within {self.patience:g} s"
        return self.outcome or (None, late, self.patience)


def take(
    machine: Machine | None = None,
    path: str = ".",
    patience: float | None = None,
    measure: Measure = NOTHING,
) -> HardwareSnapshot:
    """The machine as it is now, or the recorded one.

    Args:
        machine: the door to it; this machine by default.
        path: the folder whose file system matters.
        patience: seconds that every probe gets, instead of its own.
        measure: what to measure too.

    Raises UsageError when the recorded machine cannot be read, and for nothing else.
    """
    machine = machine or Machine()
    if recorded := machine.environ.get(FAKE):
        return codec.load(recorded)
    runs = [_Run(probe, machine, patience) for probe in probes(path, patience)]
    timestamp = machine.clock()
    for run in runs:
        run.start()
    outcomes = {run.probe.field: run.wait() for run in runs}
    known = {field: answer for field, (answer, _, _) in outcomes.items()}
    for probe in measurements(measure, known, path, patience):
        run = _Run(probe, machine, patience)
        run.start()
        outcomes[probe.field] = run.wait()
    facts = {field: answer for field, (answer, _, _) in outcomes.items()}
    return HardwareSnapshot(
        timestamp=timestamp,
        **facts,
        problems=tuple(ProbeProblem(f, error) for f, (_, error, _) in outcomes.items() if error),
        seconds={field: round(seconds, 4) for field, (_, _, seconds) in outcomes.items()},
    )
