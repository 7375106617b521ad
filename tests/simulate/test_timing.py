"""Simulated decoding: worked by hand, beside the replay, and at its limits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miractl.native.replay import Cache, Kind, Routing, Rule, replay
from miractl.simulate.synthetic import repeating
from miractl.simulate.timing import Costs, Misses, Timing, covering, simulate
from tests.simulate.conftest import random_routing, routings

COSTS = Costs(device=1, host=4, link=10, layer=2, step=1)
NEVER = 1e9
SEED_0 = [[[3, 2], [3, 5]], [[2, 4], [3, 5]], [[2, 0], [3, 5]]]


def one_layer(*tokens: list[int]) -> Routing:
    """Routing of one layer with four experts."""
    return Routing(np.array(tokens)[:, None, :], 4)


def test_offloading_by_hand() -> None:
    found = simulate(one_layer([0, 1], [1, 2], [1, 2]), (2,), Misses.OFFLOAD, COSTS)
    # Layer, two transfers, the second expert's product, step; a hit and a transfer; two hits.
    assert found.step_seconds.tolist() == [2 + 20 + 1 + 1, 2 + 10 + 1 + 1, 2 + 2 + 1]
    assert (found.lookups, found.hits, found.late, found.host, found.moved) == (6, 3, 0, 0, 3)
    assert (found.device_busy, found.host_busy, found.link_busy) == (15, 0, 30)
    assert found.hit_rate == 0.5
    assert found.seconds == pytest.approx(43 / 3)
    assert found.p95 == 24
    assert found.overlapped == 10


def test_the_host_computes_while_the_link_brings_what_it_has_time_for() -> None:
    found = simulate(one_layer([0, 1], [0, 1], [0, 1]), (2,), Misses.HOST, COSTS)
    # Only 0 is sent for, as the link is idle then, and comes at 12. At 13 it is 1's turn, until 23,
    # so that the last token asks for it too early, at 20.
    assert found.step_seconds.tolist() == [2 + 8 + 1, 2 + 4 + 1, 2 + 4 + 1]
    assert (found.hits, found.late, found.host, found.moved) == (2, 1, 4, 2)


def test_what_was_always_sent_for_is_waited_for() -> None:
    found = simulate(one_layer([0, 1], [0, 1], [0, 1]), (2,), Misses.FILL, COSTS)
    # Both are sent for at 2 and come at 12 and 22. The next token finds 0 at 13, waits for 1.
    assert found.step_seconds.tolist() == [11, 2 + 9 + 1 + 1, 5]
    assert (found.hits, found.late, found.host, found.moved) == (3, 1, 2, 2)


def test_the_cheaper_place_shares_a_layer() -> None:
    costs = Costs(device=0, host=6, link=10)
    found = simulate(one_layer([0, 1, 2]), (4,), Misses.CHEAPER, costs)
    # Two by the host in 12 while one is brought in 10; the idle link would not take another.
    assert found.step_seconds.tolist() == [12]
    assert (found.host, found.moved) == (2, 1)


def test_a_batch_asks_for_each_expert_once() -> None:
    routing = one_layer([0, 1], [2, 3], [0, 2], [2, 0])
    found = simulate(routing, (4,), Misses.OFFLOAD, COSTS, batch=2)
    # The streams are [0, 1], [2, 3] and [0, 2], [2, 0]: steps ask for 0 1 2, then for 0 2 3.
    assert (found.lookups, found.hits) == (6, 2)


@given(routings(), st.integers(0, 4))
@pytest.mark.usefixtures("kernels")
def test_offloading_hits_what_the_replay_hits(routing: Routing, ways: int) -> None:
    found = simulate(routing, (ways,) * routing.layers, Misses.OFFLOAD, COSTS)
    again = replay(routing, Cache((ways,) * routing.layers), Rule(Kind.LRU))
    assert (found.lookups, found.hits) == (again.hits.size, again.hits.sum())


def limits(misses: Misses, ways: tuple[int, ...], **costs: float) -> Timing:
    """A recording with some costs replaced."""
    changed = {"device": 1.0, "host": 4.0, "link": 10.0, "layer": 2.0, "step": 1.0, **costs}
    return simulate(random_routing(3, 60, 4, 8, 2), ways, misses, Costs(**changed))


def test_the_cheaper_place_is_the_only_one_left() -> None:
    ways = (4,) * 4
    alone = limits(Misses.OFFLOAD, ways, host=NEVER)
    assert limits(Misses.CHEAPER, ways, host=NEVER).seconds == alone.seconds
    by_host = limits(Misses.CHEAPER, ways, link=NEVER)
    assert by_host.host == by_host.lookups
    assert by_host.seconds == 1 + 4 * (2 + 2 * 4)
    assert limits(Misses.CHEAPER, ways).seconds < min(alone.seconds, by_host.seconds)


@pytest.mark.parametrize("misses", list(Misses))
def test_nothing_is_busier_than_the_time_that_passes(misses: Misses) -> None:
    found = limits(misses, (3, 3))
    assert found.hits + found.late + found.host + found.moved >= found.lookups
    assert found.overlapped <= found.seconds * (1.2 if misses is Misses.FILL else 1.01)
    assert found.p95 >= found.seconds * 0.9


def test_layers_without_a_set_never_hit() -> None:
    assert covering(4, 2, 3) == (3, 3, 0, 0)
    assert covering(2, 5, 1) == (1, 1)
    some, all_of_them = limits(Misses.FILL, covering(4, 2, 8)), limits(Misses.FILL, (8,) * 4)
    assert 0 < some.hits <= some.lookups / 2 < all_of_them.hits
    assert limits(Misses.FILL, (0,)).moved == 0


@pytest.mark.parametrize(("ways", "batch"), [((), 1), ((2, -1), 1), ((2,), 0), ((2,), 61)])
def test_refusals(ways: tuple[int, ...], batch: int) -> None:
    with pytest.raises(ValueError, match="Got"):
        simulate(random_routing(3, 60, 4, 8, 2), ways, Misses.HOST, COSTS, batch)


@pytest.mark.parametrize("repeat", [0.0, 0.4, 1.0])
def test_drawn_routing_repeats_as_often_as_asked(repeat: float) -> None:
    ids = repeating(300, 8, 8, 2, repeat).ids
    kept = (ids[1:, :, :, None] == ids[:-1, :, None, :]).any(axis=-1).mean()
    assert kept == pytest.approx(repeat, abs=0.02)
    assert np.bincount(ids.ravel()).min() > 0


def test_a_seed_means_the_same_everywhere() -> None:
    assert repeating(3, 2, 8, 2, 0.5).ids.tolist() == SEED_0
    assert repeating(3, 2, 8, 2, 0.5, seed=1).ids.tolist() != SEED_0


@pytest.mark.parametrize(("repeat", "experts"), [(1.1, 8), (-0.1, 8), (0.5, 3)])
def test_locality_that_cannot_be_drawn(repeat: float, experts: int) -> None:
    with pytest.raises(ValueError, match="Got repeat"):
        repeating(5, 1, experts, 2, repeat)
