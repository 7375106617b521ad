"""Slots where only the sizes of a model are known."""

from dataclasses import replace

import pytest

from miractl.errors import MiractlError, UsageError
from miractl.plan.books import PROCESS
from miractl.plan.machine import Given, PlanMachine, machine_for
from miractl.plan.sizes import Sizes, slots_asked, slots_left
from miractl.units import GIB, MIB

SIZES = Sizes(kinds=(0,) * 4, experts=16, top_k=2, expert=(64 * MIB,), others=GIB)


def host(memory: int) -> PlanMachine:
    return machine_for(None, None, Given(host_memory=memory), "cpu")


def test_a_budget_that_is_asked_for() -> None:
    assert slots_asked(SIZES, "25%", 4).slots == 16
    assert slots_asked(SIZES, "1GiB", 4) == slots_asked(SIZES, "25%", 4)
    with pytest.raises(UsageError, match="one layer needs its top 2 at once"):
        slots_asked(SIZES, "64MiB", 4)


def test_what_is_left_beside_program_headroom_weights_and_cache() -> None:
    left = 4 * GIB - PROCESS - 4 * GIB // 16 - GIB  # of which keys and values get a quarter
    assert slots_left(SIZES, host(4 * GIB), 4).slots == left * 3 / 4 // SIZES.expert[0] == 27
    assert slots_left(SIZES, host(64 * GIB), 4).slots == 64
    on_gpu = machine_for(None, None, Given(gpu_memory=5 * GIB))
    assert slots_left(SIZES, on_gpu, 4).slots == 38


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        (GIB + 256 * MIB, "weights: 1 GiB needed, 752 MiB free in memory"),
        (GIB + 576 * MIB, "expert slots: 128 MiB needed, 21 MiB free in memory"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_line(memory: int, said: str) -> None:
    with pytest.raises(MiractlError) as refused:
        slots_left(SIZES, host(memory), 4)
    assert (refused.value.message, refused.value.hint) == (said, "say it: --expert-memory 4GiB")


def test_unknown_memory_has_to_be_said() -> None:
    with pytest.raises(MiractlError, match="how much memory is free is not known") as refused:
        slots_left(SIZES, machine_for(None), 4)
    assert refused.value.hint == "say it: --expert-memory 4GiB"


def test_plans_agree_with_experts_of_their_size_alone() -> None:
    (slots,) = slots_asked(SIZES, "100%", 4).pools
    assert SIZES.agree_with(slots)
    assert not replace(SIZES, expert=(SIZES.expert[0] // 2,)).agree_with(slots)
    assert not replace(SIZES, kinds=(0,) * 3).agree_with(slots)
