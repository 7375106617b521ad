"""Checks of the way from the host's memory to the card: link, slot, and everything above.

NVML's maximum is limited by the slot, sysfs's is the card's own: only both together show a slot
that is too narrow. An idle link slows down, so a low value says nothing before there is load.
"""

from miractl.doctor.check import (
    Check,
    Finding,
    Judge,
    Option,
    Remedy,
    Status,
    Subject,
    each_gpu,
    ok,
    skip,
    unknown,
)
from miractl.doctor.gpu import is_idle
from miractl.doctor.link import FIELDS, at_present, is_virtual, link_load, ports_of, slowest
from miractl.probe.devices import Gpu, PciPort
from miractl.probe.pci import link_rate
from miractl.units import format_rate

_GENTLE = "miractl serve --max-staged-experts 1"


def _not_pcie(gpu: Gpu) -> Finding | None:
    """Why the link is no question here, if so."""
    if gpu.lost:
        return skip("the GPU is lost")
    if gpu.shares_host_memory:
        return skip("unified or coherent memory: the way to the host is not PCIe")
    if gpu.virtualization == "vgpu":
        return skip("vGPU: the real link is hidden by the host")
    return None


def _unless_now(when: str) -> str:
    return "" if when == "now" else f" {when}"


def _measure(id_: str) -> Remedy:
    return Remedy("Measure it while copying:", (f"miractl doctor --load {id_}",))


def _generation(subject: Subject, gpu: Gpu) -> Finding:
    (now, when), possible = at_present(subject, gpu, "generation"), gpu.link.max_generation
    if now is None or possible is None:
        return unknown("the link's generation is n/a")
    if now >= possible:
        text = f"Gen{now}{_unless_now(when)}, as fast as card and slot allow"
        return ok(text, f"Gen{now}", f"Gen{possible}")
    idle = is_idle(gpu)
    text = f"Gen{now} {when}, Gen{possible} possible"
    if when != "now" or idle is False:
        text += ", under load" if when == "now" else ""
        return Finding(Status.WARN, text, f"Gen{now}", f"Gen{possible}")
    state = f" (P{gpu.performance_state})" if gpu.performance_state is not None else ""
    why = f"the GPU is idle{state}" if idle else "whether the GPU is idle is not known"
    text += f"; {why}, so this says nothing yet"
    return unknown(text, f"Gen{now}", _measure("pcie.gen"))


def _width(subject: Subject, gpu: Gpu) -> Finding:
    (now, when), possible = at_present(subject, gpu, "width"), gpu.link.max_width
    if now is None or possible is None:
        return unknown("the link's width is n/a")
    if now >= possible:
        text = f"x{now}{_unless_now(when)}, as wide as card and slot allow"
        return ok(text, f"x{now}", f"x{possible}")
    text = f"x{now} {when}, x{possible} possible"
    generation, best = at_present(subject, gpu, "generation")[0], gpu.link.max_generation
    asleep = generation is None or generation < (best or 0)
    if when == "now" and is_idle(gpu) is not False and asleep:
        text += "; the link may be asleep, so this says nothing yet"
        return unknown(text, f"x{now}", _measure("pcie.width"))
    rates = (format_rate(link_rate(best, lanes)) for lanes in (now, possible))
    text += ", and the link is awake" if when == "now" else ""
    text += ": {} instead of {}".format(*rates)
    return Finding(Status.WARN, text, f"x{now}", f"x{possible}")


def _card_can(subject: Subject, gpu: Gpu) -> tuple[int | None, int | None]:
    """Generation and lanes of the card alone: its own register, NVML, or the profile's word."""
    ports, profile = ports_of(subject, gpu), subject.profile
    generation = (ports[0].max_generation if ports else None) or gpu.link.card_max_generation
    width = ports[0].max_width if ports else None
    if profile and profile.hardware.matches(gpu.name or ""):
        generation = generation or profile.hardware.pcie_generation
        width = width or profile.hardware.pcie_lanes
    return generation, width


def _slot_gives(subject: Subject, gpu: Gpu) -> tuple[int | None, int | None]:
    """Generation and lanes that card and slot can do together."""
    ports = ports_of(subject, gpu)
    slot = () if is_virtual(subject, gpu) else ports[1:2]
    generations = [gpu.link.max_generation, *(port.max_generation for port in slot)]
    widths = [gpu.link.max_width, *(port.max_width for port in slot)]
    return min(filter(None, generations), default=None), min(filter(None, widths), default=None)


def _slot(subject: Subject, gpu: Gpu) -> Finding:
    card, slot = _card_can(subject, gpu), _slot_gives(subject, gpu)
    if None in card:
        return unknown(
            "what the card alone can do is not readable here; a matching --profile says it"
        )
    if None in slot:
        return unknown("what the slot gives is n/a")
    (card_gen, card_width), (slot_gen, slot_width) = card, slot
    best, got = link_rate(*card), link_rate(*slot)
    observed, expected = f"Gen{slot_gen} x{slot_width}", f"Gen{card_gen} x{card_width}"
    if best is None or got is None or got >= best:
        return ok(f"{expected}, all that the card can do: {format_rate(got)}", observed, expected)
    can, gives = (
        (f"x{card_width}", f"x{slot_width} (Gen{slot_gen})")
        if card_gen == slot_gen
        else (expected, observed)
    )
    text = f"card can do {can}, this slot gives {gives}: "
    text += f"at most {format_rate(got)} instead of {format_rate(best)}"
    return Finding(Status.WARN, text, observed, expected)


def _upstream(subject: Subject, gpu: Gpu) -> Finding:
    ports = ports_of(subject, gpu)
    if not ports:
        return unknown("sysfs shows no way from the card to the root")
    if is_virtual(subject, gpu):
        return unknown("the bridges above are a hypervisor's: the real ones cannot be seen")
    above = ports[2:]
    if not above:
        return ok("the card sits at the root port, nothing in between")
    reach, best = link_rate(*_slot_gives(subject, gpu)), slowest(above, now=False)
    if reach is None or best is None:
        return unknown(f"{len(above)} ports above the slot, none tells its rate")
    if best[0] < reach:
        return _bottleneck(best, reach, "at best")
    current = slowest(above, now=True)
    if current is not None and current[0] < reach:
        load = link_load(subject, gpu)
        copying = load is not None and bool(load.ports)
        generation, width = (at_present(subject, gpu, field)[0] for field in FIELDS)
        awake = is_idle(gpu) is False or link_rate(generation, width) == reach
        if copying or awake:
            return _bottleneck(current, reach, "while copying" if copying else "now")
        text = f"{current[1].address} is at {format_rate(current[0])} now, maybe asleep"
        return unknown(text, remedy=_measure("pcie.upstream"))
    return ok(
        f"{len(above)} ports above the slot, none slower than it", expected=format_rate(reach)
    )


def _bottleneck(slow: tuple[float, PciPort], reach: float, when: str) -> Finding:
    rate, port = slow
    text = f"port {port.address} above the slot carries {format_rate(rate)} {when}, "
    text += f"the slot {format_rate(reach)}"
    return Finding(Status.WARN, text, format_rate(rate), format_rate(reach))


def link_check(
    id_: str,
    title: str,
    judge: Judge,
    about: str,
    source: str,
    remedy: Remedy,
    only_with: Option | None = None,
) -> Check:
    """A check of every card's link, skipped where the way to the host is none."""

    def guarded(subject: Subject, gpu: Gpu) -> Finding:
        return _not_pcie(gpu) or judge(subject, gpu)

    return Check(
        id=id_,
        title=title,
        category="pcie",
        severity="warning",
        needs=("driver.nvml",),
        run=each_gpu(guarded),
        about=about,
        source=source,
        remedy=remedy,
        only_with=only_with,
    )


CHECKS = (
    link_check(
        "pcie.gen",
        "speed of the link",
        _generation,
        "The generation now against the best that card and slot can do. An idle GPU lowers it to "
        "save power, which is unknown and no fault; under load, as `--load` makes it, it is a "
        "warning.",
        "nvidia-smi manual, PCIe Generation; nvml.h, nvmlDeviceGetCurrPcieLinkGeneration",
        Remedy(
            "Look for power saving in the firmware (ASPM) and for link errors:",
            ("sudo dmesg | grep -i aer", "nvidia-smi -q -d PERFORMANCE"),
        ),
    ),
    link_check(
        "pcie.width",
        "lanes of the link",
        _width,
        "Lanes in use against lanes that card and slot can do. Fewer lanes on a link at full "
        "speed, or under load, are a warning: a bad contact, a riser, a shared slot. Fewer lanes "
        "on an idle link at reduced speed are unknown, for some cards drop lanes to save power.",
        "nvidia-smi manual, PCIe Link Width; nvml.h, nvmlDeviceGetCurrPcieLinkWidth",
        Remedy(
            "Reseat the card, check riser and slot sharing; until then keep prefetch modest:",
            (_GENTLE,),
        ),
    ),
    link_check(
        "pcie.slot",
        "what the slot gives the card",
        _slot,
        "NVML's maximum width is already limited by the slot, so an x16 card in an x8 slot looks "
        "healthy there. The card's own capability is in sysfs, or in a matching profile. Rates are "
        "theoretical, one way, after line code: Gen4 x16 is 31.5 GB/s.",
        "nvml.h, nvmlDeviceGetMaxPcieLinkWidth; linux, drivers/pci/pci-sysfs.c, max_link_width",
        Remedy(
            "Move the card to a slot that gives it all lanes, or keep prefetch modest:",
            (_GENTLE, "miractl serve --no-prefetch"),
        ),
    ),
    link_check(
        "pcie.upstream",
        "ports above the slot",
        _upstream,
        "Behind a switch or a bridge the narrow place can be higher up. Every port on the way to "
        "the root is read; the slowest is named if it is slower than the slot. Values that no link "
        "can have count as unknown, and the bridges of a virtual machine are not believed.",
        "linux, Documentation/ABI/testing/sysfs-bus-pci",
        Remedy(
            "Use a slot with its own way to the processor, or keep prefetch modest:",
            ("lspci -tv", _GENTLE),
        ),
    ),
)
