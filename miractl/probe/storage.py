"""The file system behind a path: how much is free, and of which kind it is."""

from miractl.probe.facts import Storage
from miractl.probe.machine import Machine


def _mount(machine: Machine, path: str) -> tuple[str | None, str | None]:
    """Mount point and kind of the deepest mount above `path`; of equals the last one covers."""
    best: tuple[str | None, str | None] = None, None
    for row in machine.read_text("/proc/self/mountinfo").splitlines():
        left, _, right = row.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0] or ""):
            best = point, right.split()[0]
    return best


def probe(machine: Machine, path: str) -> Storage:
    """Facts of the folder `path`, or of the nearest one above it that exists."""
    real = machine.realpath(path)
    while real != "/" and not machine.exists(real):
        real = real.rpartition("/")[0] or "/"
    total, free = machine.disk(real)
    try:
        mount, kind = _mount(machine, real)
    except OSError:
        mount, kind = None, None
    return Storage(path=real, mount=mount, filesystem=kind, total=total, free=free)
