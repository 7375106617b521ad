"""Checks of the disk: room on it, and how fast it reads."""

from miractl.doctor.check import Check, Finding, Remedy, Status, Subject, ok, unknown
from miractl.units import GIB, format_bytes, format_rate

LITTLE_DISK = 1 * GIB  # recordings, traces, caches
IN_MEMORY = ("tmpfs", "ramfs")


def _disk(subject: Subject) -> Finding:
    disk = subject.storage
    free = format_bytes(disk.free)
    where = f"{disk.filesystem or 'n/a'} ({disk.mount or disk.path})"
    text = f"{free} free of {format_bytes(disk.total)} on {where}"
    if disk.free < LITTLE_DISK:
        return Finding(Status.WARN, text, free, f"more than {format_bytes(LITTLE_DISK)}")
    return ok(text, free)


def _read(subject: Subject) -> Finding:
    measured, disk = subject.disk_rate, subject.machine.storage
    rate = format_rate(measured.rate)
    source = "a file made for it" if measured.temporary else "a file that is there"
    text = f"{rate} read by one reader ({format_bytes(measured.size)} of {source})"
    if disk is not None and disk.filesystem in IN_MEMORY:
        return ok(f"{text}, which is memory and no disk ({disk.filesystem})", rate)
    if not measured.direct:
        return unknown(f"{text}, but perhaps out of the page cache: no direct reads here", rate)
    return ok(text, rate)


CHECKS = (
    Check(
        id="disk.free",
        title="free space",
        category="disk",
        severity="warning",
        run=_disk,
        about="Space for recordings, traces and heat where the command runs. Below 1 GiB is a "
        "warning.",
        source="statvfs(3), /proc/self/mountinfo",
        remedy=Remedy("See what takes it:", ("du -xhd1 . | sort -h | tail",)),
    ),
    Check(
        id="disk.read",
        title="how fast it reads",
        category="disk",
        severity="info",
        run=_read,
        only_with="disk",
        about="Bytes per second from the disk of the folder given, read in blocks of 8 MiB past "
        "the page cache: at most 256 MiB, for at most 2 s, of its largest file, or of a file of "
        "128 MiB that is made for it and gone afterwards. Experts that are not in memory come at "
        "this rate.",
        source="open(2), O_DIRECT",
    ),
)
