"""max_staged_experts: the published example, and which limit binds."""

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from miractl.plan.staging import plan_staging

GB = 10**9
TERMS: dict[str, Any] = {
    "total": 24 * GB,
    "baseline": 8_200_000_000,
    "headroom": 0,
    "kv_reserve": 0,
    "expert": 1_100_000_000,
    "cap": 3,
    "cap_name": "the cap of profile a10",
}


def test_the_worked_example() -> None:
    plan = plan_staging(**TERMS)
    assert [bound.experts for bound in plan.bounds] == [14, 7, 3]
    assert (plan.room, plan.factor, plan.limit) == (15_800_000_000, 1.8, 3)
    assert plan.binding.name == "the cap of profile a10"
    assert plan_staging(**TERMS | {"cap": 100}).binding.name == "memory, with the factor 1.8"


def test_a_known_packing_replaces_the_rule_which_is_still_shown() -> None:
    plan = plan_staging(**TERMS | {"cap": 100}, factor=Fraction(1))
    assert {bound.name: bound.experts for bound in plan.bounds} == {
        "memory, without the factor": 14,
        "memory, with the factor 1": 14,
        "memory, by the rule of 1.8": 7,
        "the cap of profile a10": 100,
    }
    assert plan.limit == 14


def test_page_locked_memory_and_slots_can_bind() -> None:
    pinned = plan_staging(**TERMS | {"cap": 100}, pinned=(4 * GB, 2.0))
    assert (pinned.binding.name, pinned.limit) == ("page-locked memory", 1)
    shared = plan_staging(**TERMS, slots=11)
    assert (shared.binding.name, shared.limit) == ("one slot in 4", 2)


@given(
    total=st.integers(0, 10**12),
    baseline=st.integers(0, 10**12),
    headroom=st.integers(0, 10**11),
    kv_reserve=st.integers(0, 10**11),
    expert=st.integers(1, 10**10),
    cap=st.integers(0, 1024),
    more=st.integers(0, 10**12),
)
def test_the_limit_keeps_every_term_and_grows_with_memory(
    total: int, baseline: int, headroom: int, kv_reserve: int, expert: int, cap: int, more: int
) -> None:
    def limit(memory: int) -> int:
        return plan_staging(
            total=memory,
            baseline=baseline,
            headroom=headroom,
            kv_reserve=kv_reserve,
            expert=expert,
            cap=cap,
            cap_name="the default cap",
        ).limit

    found = limit(total)
    assert 0 <= found <= cap
    if found:
        assert Fraction(9, 5) * found * expert <= total - baseline - headroom - kv_reserve
    assert limit(total + more) >= found
