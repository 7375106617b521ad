"""CUDA_VISIBLE_DEVICES by UUID, prefix, number, MIG instance and the empty word."""

from dataclasses import replace

import pytest
from fake_machine import A10, FakeNvml

from miractl.probe import nvml
from miractl.probe.devices import MigInstance
from miractl.probe.visible import visible, void_entry

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


def test_a_mig_instance_by_its_older_name() -> None:
    setting = {"CUDA_VISIBLE_DEVICES": "MIG-GPU-aaaa1111/3/0"}
    assert visible((FIRST, SECOND), setting) == (FIRST,)
    assert void_entry((FIRST, SECOND), setting) is None


@pytest.mark.parametrize(
    ("setting", "void"),
    [
        *(("", None), ("-1", None), ("0,-1", None), ("0,1", None), ("GPU-bb", None)),
        *(("2", "2"), ("0,2,1", "2"), ("GPU-zz,0", "GPU-zz"), ("all", "all"), ("0, 7", "7")),
    ],
)
def test_the_entry_at_which_cuda_stops(setting: str, void: str | None) -> None:
    assert void_entry(BOTH, {"CUDA_VISIBLE_DEVICES": setting}) == void


def test_no_entry_is_void_where_uuids_are_not_known() -> None:
    nameless = (replace(FIRST, uuid=None), SECOND)
    assert void_entry(nameless, {"CUDA_VISIBLE_DEVICES": "GPU-zz"}) is None
    assert void_entry(nameless, {}) is None
