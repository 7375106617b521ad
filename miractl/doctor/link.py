"""The way from the host's memory to a card, at rest or under load, whoever tells of it."""

from typing import Literal

from miractl.doctor.check import Subject
from miractl.probe.devices import Gpu, LinkLoad, PciPort
from miractl.probe.pci import link_rate

Field = Literal["generation", "width"]
FIELDS: tuple[Field, Field] = ("generation", "width")


def link_load(subject: Subject, gpu: Gpu) -> LinkLoad | None:
    """What the link did while copying, if that was measured and worked."""
    load = subject.machine.link_load(gpu)
    return None if load is None or load.error else load


def ports_of(subject: Subject, gpu: Gpu) -> tuple[PciPort, ...]:
    """Ports from the card to the root, under load where that was measured."""
    card, load = subject.machine.card(gpu), link_load(subject, gpu)
    if load and load.ports:
        return load.ports
    return () if card is None else card.ports


def at_present(subject: Subject, gpu: Gpu, field: Field) -> tuple[int | None, str]:
    """Generation or width, and the word for when: while copying if it was read then."""
    load, card = link_load(subject, gpu), subject.machine.card(gpu)
    # NVML's words first, then sysfs's.
    under_load = [load, *load.ports[:1]] if load else []
    otherwise = [gpu.link, *(card.ports[:1] if card else ())]
    for sources, when in ((under_load, "while copying"), (otherwise, "now")):
        for source in sources:
            if value := getattr(source, field):
                return value, when
    return None, "now"


def is_virtual(subject: Subject, gpu: Gpu) -> bool:
    """Whether the ports above the card are a hypervisor's invention.

    Seen by its mode, or by a port that is slower on paper than the link it shares with the card.
    """
    if gpu.virtualization == "passthrough":
        return True
    now = link_rate(*(at_present(subject, gpu, field)[0] for field in FIELDS))
    bridge = ports_of(subject, gpu)[1:2]
    rated = [link_rate(port.max_generation, port.max_width) for port in bridge]
    return any(now is not None and rate is not None and rate < now for rate in rated)


def slowest(ports: tuple[PciPort, ...], now: bool) -> tuple[float, PciPort] | None:
    """The port with the least rate, at this moment or at best; None when none tells."""
    rated = [
        (rate, port)
        for port in ports
        if (
            rate := link_rate(port.generation, port.width)
            if now
            else link_rate(port.max_generation, port.max_width)
        )
        is not None
    ]
    return min(rated, key=lambda pair: pair[0], default=None)


def carried(subject: Subject, gpu: Gpu) -> float | None:
    """Theoretical bytes per second of the whole way while copying: its slowest link.

    What could not be read then counts as the best that is possible; None without either.
    """
    (generation, g_when), (width, w_when) = (at_present(subject, gpu, field) for field in FIELDS)
    own = link_rate(
        gpu.link.max_generation if g_when == "now" else generation,
        gpu.link.max_width if w_when == "now" else width,
    )
    load, ports = link_load(subject, gpu), ports_of(subject, gpu)
    above = ports[1:] if load and load.ports and not is_virtual(subject, gpu) else ()
    narrow = slowest(above, now=True)
    return own if own is None or narrow is None else min(own, narrow[0])
