"""CUDA_VISIBLE_DEVICES by UUID, prefix, number, MIG instance and the empty word."""

from dataclasses import replace

import pytest
from fake_machine import A10, FakeNvml

from miractl.probe import nvml
from miractl.probe.facts import MigInstance
from miractl.probe.visible import visible

CARD = nvml.read(FakeNvml(A10)).gpus[0]
FIRST = replace(CARD, index=0, uuid="GPU-aaaa1111", address="0000:65:00.0")
SECOND = replace(CARD, index=1, uuid="GPU-bbbb2222", address="0000:b1:00.0")
SLICED = replace(FIRST, mig_instances=(MigInstance("MIG-cccc3333", None),))
BOTH = (FIRST, SECOND)
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("setting", "more", "shown"),
    [
        ("", {}, ()),
        ("-1", {}, ()),
        ("GPU-bbbb2222", {}, (SECOND,)),
        ("GPU-bb,GPU-aa", {}, (SECOND, FIRST)),
        ("GPU-", {}, ()),
        ("GPU-aa,GPU-zz,GPU-bb", {}, (FIRST,)),
        ("1", {}, None),
        ("1", PCI, (SECOND,)),
        ("1,7,0", PCI, (SECOND,)),
    ],
)
def test_two_cards(setting: str, more: dict[str, str], shown: object) -> None:
    assert visible(BOTH, {"CUDA_VISIBLE_DEVICES": setting, **more}) == shown


def test_not_set_shows_all_by_address() -> None:
    assert visible((SECOND, FIRST), {}) == BOTH


def test_one_card_may_be_counted() -> None:
    assert visible((FIRST,), {"CUDA_VISIBLE_DEVICES": "0"}) == (FIRST,)


def test_a_mig_instance_shows_its_card() -> None:
    assert visible((SLICED, SECOND), {"CUDA_VISIBLE_DEVICES": "MIG-cccc"}) == (SLICED,)
