"""An imagined link keeps the order and the time of a real one."""

import pytest

from miractl.native.residency import State
from miractl.native.residency_layout import Progress
from miractl.policy.keys import ExpertKey
from miractl.runtime import emulated
from miractl.runtime.emulated import EmulatedLink


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def link(time) -> EmulatedLink:
    return EmulatedLink(rate=100.0, expert_bytes=200, clock=time, sleep=time.sleep)  # 2 s each


def key(expert: int) -> ExpertKey:
    return ExpertKey(0, expert)


def test_one_after_the_other_each_its_time(link, time):
    first, second = link.submit(key(1), 0), link.submit(key(2), 1)
    link.wait(second)
    assert (first.finished_at, second.finished_at, time.now) == (2.0, 4.0, 4.0)
    assert (link.stats.bytes, link.stats.busy_seconds) == (400, 4.0)


def test_a_demand_overtakes_bets_that_have_not_begun(link, time):
    running, bet = link.submit(key(1), 0, rank=0.5), link.submit(key(2), 1, rank=0.1)
    time.now = 1.0
    demand = link.submit(key(3), 2)
    link.wait(demand)
    assert (running.state, demand.finished_at) == (State.DONE, 4.0)
    link.wait(bet)
    assert bet.finished_at == 6.0


def test_what_ended_while_nobody_looked_ended_then(link, time):
    first, second = link.submit(key(1), 0), link.submit(key(2), 1, rank=0.5)
    time.now = 3.0
    late = link.submit(key(3), 2)
    assert first.state is State.DONE
    assert second.state is State.RUNNING
    link.wait(late)
    assert (first.finished_at, second.finished_at, late.finished_at) == (2.0, 4.0, 6.0)


def test_an_idle_link_starts_when_it_is_asked(link, time):
    link.submit(key(1), 0)
    time.now = 10.0
    ticket = link.submit(key(2), 1)
    link.wait(ticket)
    assert ticket.finished_at == 12.0
    assert link.stats.busy_seconds == 4.0


def test_only_what_has_not_begun_can_be_dropped_at_once(link, time):
    running, waiting = link.submit(key(1), 0), link.submit(key(2), 1)
    assert not link.cancel(running)
    assert link.cancel(waiting)
    time.now = 9.0
    link.poll()
    assert (running.state, waiting.state) == (State.DONE, State.CANCELLED)
    assert link.stats.bytes == 200


@pytest.fixture
def quarters(time, monkeypatch) -> EmulatedLink:
    """Four chunks of half a second each."""
    monkeypatch.setattr(emulated, "LINK_CHUNK", 50)
    return EmulatedLink(rate=100.0, expert_bytes=200, clock=time, sleep=time.sleep)


def test_a_demand_waits_for_one_chunk_of_a_bet(quarters, time):
    progress = Progress(4)
    bet = quarters.submit(key(1), 1, 0.5, progress)
    time.now = 0.6
    assert quarters.backlog == pytest.approx(0.4)
    demand = quarters.submit(key(2), 2)
    time.now = 1.2
    assert quarters.pending == (1, 1)
    assert (bet.state, demand.state) == (State.PAUSED, State.RUNNING)
    assert (progress.state[1], progress.moved[1]) == (State.PAUSED, 100)
    assert (progress.began[1], progress.finished[1]) == (0.0, 1.0)
    quarters.wait(demand)
    assert (demand.began_at, demand.finished_at) == (1.0, 3.0)
    quarters.wait(bet)
    assert (bet.finished_at, bet.passed) == (4.0, 2.0)  # the pause is left out
    assert (quarters.stats.bytes, quarters.stats.busy_seconds) == (400, 4.0)
    assert quarters.stats.waited_seconds == pytest.approx(4.0 - 1.2)


def test_a_paused_bet_is_promoted_and_goes_on_where_it_was(quarters, time):
    bet = quarters.submit(key(1), 0, rank=0.5)
    time.now = 0.1
    first, second = quarters.submit(key(2), 1), quarters.submit(key(3), 2, rank=0.1)
    time.now = 1.0
    assert quarters.overtake(bet) is bet
    assert quarters.backlog == pytest.approx(1.5 + 1.5)
    quarters.wait(second)
    assert (first.finished_at, bet.finished_at, second.finished_at) == (2.5, 4.0, 6.0)
    assert quarters.stats.bytes == 600


def test_a_bet_that_is_waited_for_is_left_for_nobody(quarters, time):
    bet = quarters.submit(key(1), 0, rank=0.5)
    time.now = 0.1
    demand = quarters.submit(key(2), 1)
    quarters.overtake(bet)
    quarters.wait(demand)
    assert (bet.finished_at, demand.finished_at) == (2.0, 4.0)


def test_a_demand_that_is_dropped_pauses_nobody(quarters, time):
    bet = quarters.submit(key(1), 0, rank=0.5)
    time.now = 0.1
    assert quarters.cancel(quarters.submit(key(2), 1))
    quarters.wait(bet)
    assert bet.finished_at == 2.0


def test_what_is_not_wanted_ends_with_its_chunk(quarters, time):
    progress = Progress(4)
    bet, other = quarters.submit(key(1), 1, 0.5, progress), quarters.submit(key(2), 2, 0.6)
    time.now = 0.7
    assert not quarters.abandon(bet)
    assert not quarters.cancel(bet)
    assert bet.state is State.RUNNING
    quarters.finish(bet)
    assert (bet.state, time.now) == (State.CANCELLED, 1.0)
    assert (progress.state[1], progress.moved[1]) == (State.CANCELLED, 100)
    quarters.wait(other)
    assert (other.began_at, other.finished_at) == (1.0, 3.0)
    assert (quarters.stats.bytes, quarters.stats.busy_seconds) == (300, 3.0)


def test_a_paused_bet_is_dropped_at_once(quarters, time):
    bet = quarters.submit(key(1), 0, rank=0.5)
    time.now = 0.1
    demand = quarters.submit(key(2), 1)
    time.now = 1.0
    assert quarters.abandon(bet)
    quarters.wait(demand)
    time.now = 9.0
    assert quarters.pending == (0, 0)
    assert (bet.state, bet.moved, quarters.stats.bytes) == (State.CANCELLED, 50, 250)


def test_who_is_wanted_again_goes_on_or_is_moved_anew(quarters, time):
    bet = quarters.submit(key(1), 0, rank=0.5)
    time.now = 0.1
    quarters.abandon(bet)
    assert quarters.overtake(bet) is bet
    quarters.wait(bet)
    assert bet.finished_at == 2.0
    late = quarters.submit(key(2), 1, rank=0.5)
    quarters.abandon(late)
    time.now += 3.0
    again = quarters.overtake(late)
    quarters.wait(again)
    assert late.state is State.CANCELLED
    assert (again.finished_at, again.is_demand) == (7.0, True)


def test_closing_waits_for_nothing(quarters, time):
    bet = quarters.submit(key(1), 0, rank=0.5)
    demand = quarters.submit(key(2), 1)
    time.now = 1.0
    quarters.close()
    assert time.now == 1.0
    quarters.wait(demand)
    assert bet.state is not State.DONE
