"""The PCI tree from sysfs: NVIDIA cards, each with the links of every port up to the root.

`max_link_*` is what a port's own capability register says, so a card's value does not depend on the
slot, unlike NVML's maximum. Firmware and hypervisors write garbage there; garbage is unknown.
"""

import re

from miractl.probe.devices import PciCard, PciPort
from miractl.probe.machine import Machine

DEVICES = "/sys/bus/pci/devices"
NVIDIA = "0x10de"
DISPLAY = (
    "0x0300",
    "0x0302",
)  # VGA controller, 3D controller; the rest are its audio and USB parts
ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

# Generation by the kernel's GT/s, and bytes per second of one lane after the line code: 8b/10b in
# the first two, 128b/130b in the next three, 242 of 256 bytes of a FLIT in the sixth.
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
LANE_RATES = {
    1: 2.5e9 / 10,
    2: 5e9 / 10,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,
}
WIDTHS = (1, 2, 4, 8, 12, 16, 32)


def link_rate(generation: int | None, width: int | None) -> float | None:
    """Theoretical bytes per second one way: Gen4 x16 is 31.5 GB/s. None without both terms."""
    if generation not in LANE_RATES or width is None:
        return None
    return LANE_RATES[generation] * width


def valid_generation(number: int | None) -> int | None:
    """A PCIe generation, or None for what cannot be one."""
    return number if number in LANE_RATES else None


def valid_width(number: int | None) -> int | None:
    """A number of lanes, or None for what cannot be one (0, 63 and 255 are seen)."""
    return number if number in WIDTHS else None


def generation_of(speed: str | None) -> int | None:
    """Generation of sysfs's `16.0 GT/s PCIe`; None for `Unknown` and other garbage."""
    match = re.match(r"\s*(\d+(?:\.\d+)?) GT/s", speed or "")
    return None if match is None else GENERATIONS.get(float(match[1]))


def normal_address(address: str) -> str:
    """NVML's `00000000:65:00.0` as sysfs has it: four digits of domain, lower case."""
    domain, _, rest = address.strip().lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _port(machine: Machine, folder: str) -> PciPort:
    return PciPort(
        address=folder.rpartition("/")[2],
        generation=generation_of(machine.line(f"{folder}/current_link_speed")),
        width=valid_width(machine.number(f"{folder}/current_link_width")),
        max_generation=generation_of(machine.line(f"{folder}/max_link_speed")),
        max_width=valid_width(machine.number(f"{folder}/max_link_width")),
    )


def path(machine: Machine, address: str) -> tuple[PciPort, ...]:
    """Ports from the card to the root: the resolved folder nests one in the other."""
    folder, ports = machine.realpath(f"{DEVICES}/{address}"), []
    while ADDRESS.fullmatch(folder.rpartition("/")[2]):
        ports.append(_port(machine, folder))
        folder = folder.rpartition("/")[0]
    return tuple(ports)


def probe(machine: Machine) -> tuple[PciCard, ...]:
    """All NVIDIA cards, by address. Raises OSError without a PCI tree in sysfs."""
    cards = []
    for address in sorted(machine.listdir(DEVICES)):
        folder = f"{DEVICES}/{address}"
        kind = machine.line(f"{folder}/class") or ""
        if machine.line(f"{folder}/vendor") != NVIDIA or not kind.startswith(DISPLAY):
            continue
        node = machine.number(f"{folder}/numa_node")
        ports = path(machine, address) or (PciPort(address, None, None, None, None),)
        device = machine.line(f"{folder}/device") or "unknown"
        cards.append(PciCard(device, None if node is None or node < 0 else node, ports))
    return tuple(cards)
