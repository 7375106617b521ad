"""Device or host: whoever is done sooner, by measured rates."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miractl.policy.keys import ExpertKey
from miractl.policy.placement import Missing, Place, Rates, place


def rates(copy: float | None, expert: float | None, token: float = 0.0) -> Rates:
    found = Rates()
    found.copy, found.host_expert, found.host_token = copy, expert, token
    return found


def missing(*tokens: int) -> list[Missing]:
    return [Missing(ExpertKey(3, number), count) for number, count in enumerate(tokens)]


def finish(
    experts: list[Missing], where: dict[ExpertKey, Place], backlog: float, r: Rates
) -> float:
    copies = sum(where[m.key] is Place.COPY for m in experts)
    host = sum(r.host(m.tokens) for m in experts if where[m.key] is Place.HOST)
    return max(backlog + copies * r.copy if copies else 0.0, host)


def test_without_both_rates_everything_is_copied():
    for known in (rates(None, 1.0), rates(1.0, None), rates(None, None)):
        assert set(place(missing(1, 1), 0.0, known).values()) == {Place.COPY}


def test_a_fast_host_takes_all_and_a_slow_one_nothing():
    assert set(place(missing(1, 1), 0.0, rates(10.0, 1.0)).values()) == {Place.HOST}
    assert set(place(missing(1, 1), 0.0, rates(1.0, 10.0)).values()) == {Place.COPY}
    assert set(place(missing(1, 1), 0.0, rates(10.0, 1.0), False).values()) == {Place.COPY}


def test_many_tokens_are_worth_a_copy():
    where = place(missing(1, 64), 0.0, rates(8.0, 2.0, token=1.0))
    assert where == {ExpertKey(3, 0): Place.HOST, ExpertKey(3, 1): Place.COPY}


def test_a_busy_link_sends_work_to_the_host():
    assert place(missing(1), 0.0, rates(1.0, 2.0)) == {ExpertKey(3, 0): Place.COPY}
    assert place(missing(1), 5.0, rates(1.0, 2.0)) == {ExpertKey(3, 0): Place.HOST}


def test_a_copy_under_way_is_waited_for_unless_the_host_is_done_before_it():
    key = ExpertKey(3, 0)
    assert place([Missing(key, 1, arrives=1.0)], 9.0, rates(10.0, 2.0)) == {key: Place.WAIT}
    assert place([Missing(key, 1, arrives=5.0)], 9.0, rates(10.0, 2.0)) == {key: Place.HOST}
    assert place([Missing(key, 1, arrives=5.0)], 9.0, rates(10.0, None)) == {key: Place.WAIT}


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=7),
    st.floats(0, 20),
    st.floats(0.1, 20),
    st.floats(0.1, 20),
    st.floats(0, 2),
)
def test_the_split_is_close_to_the_best_and_never_worse_than_one_place(
    tokens, backlog, copy, expert, token
):
    experts, r = missing(*tokens), rates(copy, expert, token)
    keys = [m.key for m in experts]
    taken = finish(experts, place(experts, backlog, r), backlog, r)
    best = min(
        finish(experts, dict(zip(keys, choice, strict=True)), backlog, r)
        for choice in product((Place.COPY, Place.HOST), repeat=len(keys))
    )
    everywhere = [
        finish(experts, dict.fromkeys(keys, p), backlog, r) for p in (Place.COPY, Place.HOST)
    ]
    assert taken <= 2 * best + 1e-9
    assert taken <= min(everywhere) + 1e-9


def test_rates_tell_experts_from_tokens():
    r = Rates()
    r.computed(experts=4, tokens=4, seconds=8.0)
    assert r.host(1) == 2.0
    r.computed(experts=2, tokens=12, seconds=9.0)  # 5 s beyond the experts, 10 tokens more
    assert r.host(1) == 2.0
    assert r.host(3) == pytest.approx(3.0)
    r.copied(1.0)
    r.copied(2.0)
    assert r.copy == pytest.approx(1.1)
