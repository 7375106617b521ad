"""An imagined link keeps the order and the time of a real one."""

import pytest

from miractl.native.residency import State
from miractl.policy.keys import ExpertKey
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


def test_only_what_has_not_begun_can_be_dropped(link, time):
    running, waiting = link.submit(key(1), 0), link.submit(key(2), 1)
    assert not link.cancel(running)
    assert link.cancel(waiting)
    time.now = 9.0
    link.poll()
    assert (running.state, waiting.state) == (State.DONE, State.CANCELLED)
    assert link.stats.bytes == 200
