"""The PCI tree: real values, garbage, and the arithmetic of links."""

import pytest
from fake_machine import fake_machine

from miractl.probe import pci
from miractl.probe.devices import PciPort

ROOT = "/sys/devices/pci0000:64/0000:64:00.0"
CARD = f"{ROOT}/0000:65:00.0"


def port(folder: str, speed: str, width: str, best: str, lanes: str) -> dict[str, str]:
    return {
        f"{folder}/current_link_speed": speed,
        f"{folder}/current_link_width": width,
        f"{folder}/max_link_speed": best,
        f"{folder}/max_link_width": lanes,
    }


A10 = {
    f"{CARD}/vendor": "0x10de\n",
    f"{CARD}/class": "0x030200\n",
    f"{CARD}/device": "0x2236\n",
    f"{CARD}/numa_node": "1\n",
    **port(CARD, "2.5 GT/s PCIe\n", "8\n", "16.0 GT/s PCIe\n", "16\n"),
    **port(ROOT, "2.5 GT/s PCIe\n", "8\n", "16.0 GT/s PCIe\n", "8\n"),
}
LINK = {"/sys/bus/pci/devices/0000:65:00.0": CARD}


def test_an_x16_card_in_an_x8_slot() -> None:
    (card,) = pci.probe(fake_machine(A10, LINK))
    assert (card.address, card.device, card.numa_node) == ("0000:65:00.0", "0x2236", 1)
    assert card.ports == (
        PciPort("0000:65:00.0", 1, 8, 4, 16),
        PciPort("0000:64:00.0", 1, 8, 4, 8),
    )


@pytest.mark.parametrize("change", [{"vendor": "0x1002\n"}, {"class": "0x040300\n"}])
def test_other_devices_are_left_out(change: dict[str, str]) -> None:
    files = {**A10, **{f"{CARD}/{name}": text for name, text in change.items()}}
    assert pci.probe(fake_machine(files, LINK)) == ()


@pytest.mark.parametrize("garbage", ["Unknown\n", "", "0\n", "63\n", "255\n", "-1\n", "x\n"])
def test_garbage_is_unknown(garbage: str) -> None:
    files = {**A10, **port(CARD, garbage, garbage, garbage, garbage), f"{CARD}/numa_node": "-1\n"}
    (card,) = pci.probe(fake_machine(files, LINK))
    assert card.ports[0] == PciPort("0000:65:00.0", None, None, None, None)
    assert card.numa_node is None


def test_no_tree_is_an_error_and_not_an_empty_bus() -> None:
    with pytest.raises(OSError, match="devices"):
        pci.probe(fake_machine())


@pytest.mark.parametrize(
    ("generation", "width", "gigabytes"),
    [
        (1, 16, 4.0),
        (2, 16, 8.0),
        (3, 16, 15.75),
        (4, 8, 15.75),
        (4, 16, 31.51),
        (5, 16, 63.02),
        (6, 16, 121.0),
    ],
)
def test_rates_of_links(generation: int, width: int, gigabytes: float) -> None:
    rate = pci.link_rate(generation, width)
    assert rate is not None
    assert rate / 1e9 == pytest.approx(gigabytes, abs=0.01)


def test_half_a_link_has_no_rate() -> None:
    assert pci.link_rate(4, None) is None
    assert pci.link_rate(None, 16) is None


@pytest.mark.parametrize(
    ("address", "normal"),
    [
        ("00000000:65:00.0", "0000:65:00.0"),
        ("0000:B1:00.0", "0000:b1:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
    ],
)
def test_addresses_of_nvml_and_sysfs_meet(address: str, normal: str) -> None:
    assert pci.normal_address(address) == normal
