"""The prefetcher: learns times first, bets what pays, and every bet has one end."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from miractl.native.residency import Role, State
from miractl.policy.brain import Brain
from miractl.policy.eviction import LeastRecentlyUsed
from miractl.policy.heat import HeatTable
from miractl.policy.keys import ExpertKey
from miractl.policy.routing import Routed, Segment
from miractl.policy.slots import make_slots
from miractl.runtime.cache import ExpertCache
from miractl.runtime.prefetch import Prefetcher
from miractl.runtime.ticket import Course
from miractl.runtime.transfer_queue import TransferQueue

pytestmark = pytest.mark.usefixtures("kernels")
LAYERS, EXPERTS = 2, 12
TRANSFER, COMPUTE = 0.25, 1.0


class World:
    """A clock that the test moves, and a mover that takes its time on it; `closed` holds it up."""

    source, busy_seconds, seconds = "disk", None, None

    def __init__(self) -> None:
        self.now, self.chunks = 0.0, 1
        self.open = threading.Event()
        self.open.set()

    def clock(self) -> float:
        return self.now

    def move(self, key: ExpertKey, slot: int, chunks: int) -> Course:
        for left in reversed(range(chunks)):
            assert self.open.wait(10)
            self.now += TRANSFER / chunks
            if left:
                yield 100 * (chunks - left) // chunks
        return 100

    def arrive(self, slot: int) -> None:
        pass


class Told:
    """Guesses what the test says: experts of the next layer."""

    mode = "told"

    def __init__(self) -> None:
        self.next: list[int] = []
        self.observed: list[int] = []

    def observe(self, step: Routed, hidden: object) -> None:
        self.observed.append(step.layer)
        self._layer = step.layer

    def guess(self, ahead: int) -> np.ndarray | None:
        guess = np.zeros(EXPERTS)
        guess[self.next] = 0.9
        return guess if self._layer + ahead < LAYERS else None

    def fade(self) -> None:
        pass


def routed(layer: int, *experts: int) -> Routed:
    """A step of one token that uses these experts."""
    ids = np.array([experts])
    return Routed(layer, ids, np.ones(ids.shape, np.float32), (Segment(0, 0, 1, 1),), 0)


class Bench:
    """A cache of two ways a layer, and steps of one token on it."""

    def __init__(self) -> None:
        self.world, self.told = World(), Told()
        heat = HeatTable(LAYERS, EXPERTS, 1, clock=self.world.clock)
        policy = Brain(LeastRecentlyUsed(LAYERS, EXPERTS), heat)
        self.queue = TransferQueue(self.world, self.world.clock, workers=1)
        self.cache = ExpertCache(
            make_slots(2 * LAYERS + 1, (2,) * LAYERS, 2, policy),
            *(self.queue, self.world.clock),
        )
        self.prefetcher = Prefetcher(
            *(self.cache, self.told), confidence=1.0, horizon=1, clock=self.world.clock
        )

    def layer(self, layer: int, expert: int) -> None:
        self.step(routed(layer, expert))
        self.idle()
        self.world.now += COMPUTE

    def step(self, step: Routed) -> None:
        self.cache.route(step, None)
        for _ in self.cache.serve(step):
            pass

    def bet(self, *experts: int) -> None:
        """On experts of layer 1."""
        pairs = self.cache.residency.bet(1, experts)
        self.cache.issue(1, pairs, np.full(EXPERTS, 0.9))

    def idle(self) -> None:
        """Until every transfer that is not held up is through."""
        while self.world.open.is_set() and self.queue.pending != (0, 0):
            threading.Event().wait(0.001)

    def token(self, first: int, second: int, guess: int | None = None) -> None:
        self.told.next = [] if guess is None else [guess]
        self.layer(0, first)
        self.layer(1, second)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.world.open.set()
    bench.queue.close()


def test_nothing_is_bet_until_the_times_are_known(bench: Bench) -> None:
    bench.token(0, 1, guess=1)
    assert bench.cache.counters.issued == 0
    assert bench.queue.seconds_each == TRANSFER
    bench.token(1, 2, guess=2)
    assert bench.cache.counters.issued == 1
    assert bench.told.observed == [0, 1, 0, 1]


def test_right_guesses_are_hits_and_fill_the_ledger(bench: Bench) -> None:
    rng = np.random.default_rng(0)
    for _ in range(150):
        wanted = int(rng.integers(EXPERTS))
        bench.token(int(rng.integers(EXPERTS)), wanted, guess=wanted)
    counters = bench.cache.counters
    assert counters.used == counters.issued > 30
    assert counters.wasted == counters.late == 0
    assert bench.prefetcher.bets.balance == pytest.approx(50 * TRANSFER)  # as much as it keeps
    assert int(bench.cache.residency.hits[1].sum()) > 140


def test_wrong_guesses_are_soon_withheld(bench: Bench) -> None:
    rng = np.random.default_rng(0)
    issued = []
    for _ in range(200):
        wanted = int(rng.integers(EXPERTS))
        bench.token(0, wanted, guess=(wanted + 1) % EXPERTS)
        issued.append(bench.cache.counters.issued)
    counters, bets = bench.cache.counters, bench.prefetcher.bets
    assert issued[-1] - issued[-50] < 5 < issued[0:50][-1]
    assert bets.calibrated(float(np.float32(0.9))) < 0.15
    ended = counters.wasted + counters.cancelled + counters.used
    assert counters.issued == ended + bench.cache.residency.staged


def test_a_bet_that_has_not_begun_ends_when_its_layer_is_routed(bench: Bench) -> None:
    bench.token(0, 1)
    bench.token(1, 2)
    bench.layer(0, 1)
    table = bench.cache.residency
    bench.world.open.clear()
    assert table.room_for_bets == 2
    bench.bet(4, 5)  # one worker: the second waits in the queue
    assert table.room_for_bets == 0
    slot = table.slot_of(ExpertKey(1, 4))
    while table.progress.state[slot] != State.RUNNING:
        threading.Event().wait(0.001)
    bench.cache.route(routed(1, 0), None, whole=False)
    assert table.oldest() == [ExpertKey(1, 4)]
    assert table.room_for_bets == 2  # it is stale, and makes way
    assert bench.cache.counters.cancelled == 1
    bench.world.open.set()
    bench.idle()
    bench.bet(3, 2)
    assert (bench.cache.counters.wasted, bench.cache.counters.wasted_bytes) == (1, 100)
    assert table.oldest() == [ExpertKey(1, 3), ExpertKey(1, 2)]


def test_a_bet_under_way_ends_with_its_chunk_when_its_layer_is_routed(bench: Bench) -> None:
    bench.token(0, 1)
    bench.token(1, 2)
    table = bench.cache.residency
    bench.world.chunks = 4
    bench.world.open.clear()
    bench.bet(4)
    slot = table.slot_of(ExpertKey(1, 4))
    while table.progress.state[slot] != State.RUNNING:
        threading.Event().wait(0.001)
    before = bench.queue.stats.bytes
    bench.cache.route(routed(1, 0), None, whole=False)
    assert table.oldest() == [ExpertKey(1, 4)]  # until it is left
    bench.world.open.set()
    bench.idle()
    assert bench.queue.stats.bytes - before == 25
    bench.bet(3, 2)  # there is room for both
    counters = bench.cache.counters
    assert (counters.wasted, counters.wasted_bytes, counters.cancelled) == (1, 25, 0)


def test_a_demand_may_have_the_place_of_any_bet_in_its_set(bench: Bench) -> None:
    bench.token(0, 1)
    bench.bet(4, 5)
    bench.idle()
    bench.step(routed(1, 0, 2, 3))
    assert bench.cache.counters.wasted > 0


def test_nothing_is_kept_from_residents_while_nobody_bets(bench: Bench) -> None:
    table = bench.cache.residency
    for number in range(6):
        bench.token(number % 2, 2 + number % 2)
    assert table.members(Role.RESIDENT) == {
        ExpertKey(0, 0),
        ExpertKey(0, 1),
        ExpertKey(1, 2),
        ExpertKey(1, 3),
    }
    assert (table.free, bench.cache.counters.issued) == ((1,), 0)


def test_no_bets_where_deciding_takes_longer_than_fetching(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    guess, asked = bench.told.guess, []

    def slow(ahead: int) -> np.ndarray | None:
        asked.append(ahead)
        bench.world.now += 100 * TRANSFER
        return guess(ahead)

    monkeypatch.setattr(bench.told, "guess", slow)
    for turn in range(129):
        bench.token(turn % 3, turn % 4, guess=turn % 4)
    assert 16 <= len(asked) <= 18  # of 258 layers: the first, and 16 in a row
    assert len(bench.told.observed) == 258
