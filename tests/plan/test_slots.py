"""Slots from a byte budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miractl.errors import UsageError
from miractl.plan.slots import parse_budget, plan_slots
from miractl.units import MIB


@given(
    budget=st.integers(0, 10**9),
    expert_bytes=st.integers(1, 10**7),
    layers=st.integers(1, 48),
    experts=st.integers(1, 128),
    top_k=st.integers(1, 8),
    max_staged=st.integers(0, 8),
)
def test_a_plan_keeps_the_budget_and_can_always_make_progress(
    budget: int, expert_bytes: int, layers: int, experts: int, top_k: int, max_staged: int
) -> None:
    top_k = min(top_k, experts)
    try:
        plan = plan_slots(budget, expert_bytes, layers, experts, top_k, max_staged)
    except UsageError:
        assert budget // expert_bytes < top_k
        return
    assert plan.arena_bytes <= budget
    assert plan.slots <= layers * experts
    assert len(plan.ways) <= layers
    assert max(plan.ways) - min(plan.ways) <= 1
    passing = plan.slots - sum(plan.ways)
    if plan.slots == layers * experts:
        assert plan.ways == (experts,) * layers
    else:
        assert 1 <= passing <= max(1, min(top_k // 2, plan.slots // 64))
    assert plan.staging_limit <= max_staged
    assert plan.staging_limit <= plan.slots // 4


def test_a_budget_below_one_layers_top_k_is_refused_with_what_would_do() -> None:
    with pytest.raises(UsageError) as refused:
        plan_slots(7 * MIB, 2 * MIB, 6, 32, 4, 3)
    assert refused.value.message == (
        "expert memory 7 MiB holds 3 experts of 2 MiB; one layer needs its top 4 at once"
    )
    assert refused.value.hint == "--expert-memory 8MiB or more"
    assert plan_slots(8 * MIB, 2 * MIB, 6, 32, 4, 3).slots == 4


@pytest.mark.parametrize(
    ("text", "expected"), [("40%", 400), ("100%", 1000), ("512B", 512), ("1KiB", 1024)]
)
def test_budgets_are_shares_of_all_experts_or_bytes(text: str, expected: int) -> None:
    assert parse_budget(text, 1000) == expected


@pytest.mark.parametrize("text", ["", "40", "0%", "101%", "-3GiB", "lots", "nan%"])
def test_other_budgets_are_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="expert memory: "):
        parse_budget(text, 1000)


@pytest.mark.parametrize(
    ("slots", "sets", "ways"),
    [(20, 3, (7, 6, 6)), (20, 1, (19,)), (20, None, (4, 3, 3, 3, 3, 3)), (8, 6, (2, *(1,) * 5))],
)
def test_sets_share_what_stays_whether_there_are_bets_or_not(
    slots: int, sets: int | None, ways: tuple[int, ...]
) -> None:
    for staged in (0, 2):
        assert plan_slots(slots, 1, 6, 32, 4, staged, sets).ways == ways


def test_sets_where_everything_fits_hold_all_of_their_layers() -> None:
    assert plan_slots(10**6, 1, 5, 8, 2, 4, sets=2).ways == (3 * 8, 2 * 8)


def test_sets_that_make_no_sense_are_one_line() -> None:
    with pytest.raises(UsageError, match="7 sets are more than the 6 layers") as refused:
        plan_slots(20, 1, 6, 32, 4, 2, sets=7)
    assert refused.value.hint == "--sets 6 or fewer"
    with pytest.raises(UsageError, match="6 sets are more than the 3 experts that stay in 4 slots"):
        plan_slots(4, 1, 6, 32, 4, 0, sets=6)
