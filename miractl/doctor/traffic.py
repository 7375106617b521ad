"""Checks of what goes over the links: the measured rate, packets sent again, GPU to GPU."""

from miractl.doctor.check import Check, Finding, Remedy, Status, Subject, ok, skip, unknown
from miractl.doctor.link import carried, link_load
from miractl.doctor.pcie import link_check
from miractl.probe.devices import Gpu
from miractl.units import format_rate, format_share

# What packet headers and flow control leave of the theoretical rate.
USABLE = 0.85
LOW = 0.8  # of that; a warning below


def _failed(subject: Subject, gpu: Gpu) -> Finding:
    """Why there is no measurement of this card."""
    load = next((link for link in subject.load.links if link.address == gpu.address), None)
    if load is None:
        return unknown("CUDA showed no such card to copy to")
    return unknown(f"copying to the card failed: {load.error}")


def _rate(subject: Subject, gpu: Gpu) -> Finding:
    load, theory = link_load(subject, gpu), carried(subject, gpu)
    if load is None:
        return _failed(subject, gpu)
    if load.rate is None:
        return unknown("the copies took no measurable time")
    if theory is None:
        return unknown(f"{format_rate(load.rate)}; what the link could do is n/a")
    if load.rate > theory:
        text = (
            f"{format_rate(load.rate)} from pinned memory, more than the {format_rate(theory)} of "
        )
        return unknown(f"{text}the link that is shown: the real one is another")
    usable, observed = theory * USABLE, format_rate(load.rate)
    text = f"{observed} from pinned memory, {format_share(load.rate / usable)} of the "
    text += f"{format_rate(usable)} that such a link gives in practice"
    status = Status.WARN if load.rate < LOW * usable else Status.OK
    return Finding(status, text, observed, format_rate(usable))


def _replay(subject: Subject, gpu: Gpu) -> Finding:
    load = link_load(subject, gpu)
    if load is None:
        return _failed(subject, gpu)
    if load.replays is None:
        return unknown("the counter of packets sent again is n/a")
    if load.replays > 0:
        text = f"packets sent again while copying: {load.replays}"
        return Finding(Status.WARN, text, str(load.replays), "0")
    return ok("no packet had to be sent again while copying", "0", "0")


def _p2p(subject: Subject) -> Finding:
    if len(subject.nvml.gpus) < 2:
        return skip("there is one GPU")
    pairs = subject.nvml.peers
    if all(pair.status is None for pair in pairs):
        return unknown("whether the GPUs can read each other's memory is n/a")
    groups: dict[str, list[str]] = {}
    for pair in pairs:
        words = {"ok": "direct", None: "n/a"}.get(pair.status, f"by the host ({pair.status})")
        groups.setdefault(words, []).append("{}-{}".format(*pair.indices))
    return ok("; ".join(f"GPU {', '.join(names)}: {words}" for words, names in groups.items()))


CHECKS = (
    link_check(
        "pcie.rate",
        "measured rate",
        _rate,
        "Bytes per second of copies from page-locked memory to the card, against 85 % of the "
        "theoretical rate of the slowest link on the way, as it was while copying. Below 80 % of "
        "that is a warning: another socket's memory, an IOMMU that translates, other traffic. "
        "A rate above the link's own is unknown: a hypervisor shows another link.",
        "copies of 32 MiB for 0.3 s, timed by CUDA events",
        Remedy(
            "Look for a far NUMA node, link errors, and an IOMMU in the way:",
            ("miractl doctor host.numa cpu.freq", "sudo dmesg | grep -i -e aer -e iommu"),
        ),
        only_with="load",
    ),
    link_check(
        "pcie.replay",
        "packets sent again",
        _replay,
        "The link repeats packets that arrive damaged. A count that grows while copying is a "
        "warning: a riser, a dirty contact, a link too fast for its cable.",
        "nvml.h, nvmlDeviceGetPcieReplayCounter",
        Remedy(
            "Reseat the card and its riser; look for errors that the kernel saw:",
            ("sudo dmesg | grep -i aer",),
        ),
        only_with="load",
    ),
    Check(
        id="pcie.p2p",
        title="GPU to GPU",
        category="pcie",
        severity="info",
        needs=("driver.nvml",),
        run=_p2p,
        about="Whether GPUs read each other's memory directly, or through the host. Consumer "
        "cards mostly do not: the RTX 4090 has neither NVLink nor, with the stock driver, this.",
        source="nvml.h, nvmlDeviceGetP2PStatus",
    ),
)
