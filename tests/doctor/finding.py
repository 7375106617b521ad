"""What one check finds."""

from miractl.doctor.check import Finding, Subject, examine
from miractl.doctor.registry import CHECKS
from miractl.probe.facts import HardwareSnapshot

BY_ID = {check.id: check for check in CHECKS}


def find(id_: str, examined: HardwareSnapshot, **more: object) -> Finding:
    subject = Subject(examined, **more)  # type: ignore[arg-type]
    (result,) = examine(subject, [BY_ID[id_]], CHECKS)
    return result.finding
