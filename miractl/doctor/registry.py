"""All checks, in the order in which they are told, and the choice among them."""

from collections.abc import Collection, Sequence

from miractl.doctor import (
    cpu,
    disk,
    driver,
    extensions,
    gpu,
    health,
    host,
    model,
    pcie,
    pinned,
    service,
    software,
    traffic,
)
from miractl.doctor.check import Check
from miractl.errors import UsageError
from miractl.suggest import nearest

CHECKS: tuple[Check, ...] = (
    *software.CHECKS,
    *extensions.CHECKS,
    *driver.CHECKS,
    *gpu.CHECKS,
    *health.CHECKS,
    *pcie.CHECKS,
    *traffic.CHECKS,
    *host.CHECKS,
    *pinned.CHECKS,
    *cpu.CHECKS,
    *disk.CHECKS,
    *model.CHECKS,
    *service.CHECKS,
)
_BY_ID = {check.id: check for check in CHECKS}


def choose(ids: Sequence[str], given: Collection[str]) -> list[Check]:
    """The checks named, or all those for which the options given suffice.

    Raises UsageError for an unknown id, and for a check whose option was not given.
    """
    if not ids:
        return [check for check in CHECKS if check.only_with in (None, *given)]
    for id_ in ids:
        if id_ not in _BY_ID:
            raise UsageError(
                f"no check {id_!r}{nearest(id_, _BY_ID)}", hint="miractl doctor --list"
            )
        option = _BY_ID[id_].only_with
        if option is not None and option not in given:
            raise UsageError(f"check {id_} needs --{option}", hint="miractl doctor --help")
    return [_BY_ID[id_] for id_ in dict.fromkeys(ids)]
