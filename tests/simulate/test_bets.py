"""The gate of bets and the link: C and Python agree, and nobody loses much."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miractl.native.bets import Bets, BetsState, Course, Link, Moment, run_timeline
from miractl.native.replay import Cache, Kind, Outcome, Routing, Rule, replay
from miractl.simulate.betting import ReferenceBets
from miractl.simulate.timeline import play
from tests.simulate.conftest import random_routing

pytestmark = pytest.mark.usefixtures("kernels")
KNOWN = ("demand", "bins", "guess", "proposal", "hidden", "risk")
SCALARS = ("balance", "worth", "switches", "withheld")
PREDICTORS = ("random", "right", "wrong", "turncoat", "half", "sure")


def cached(routing: Routing, ways: int) -> Outcome:
    return replay(routing, Cache((ways,) * routing.layers), Rule(Kind.LRU), residents=True)


def guesses_by(name: str, routing: Routing, horizon: int, seed: int) -> np.ndarray:
    """Guesses [horizon, tokens, layers, experts] of a predictor with a character."""
    rng = np.random.default_rng(seed)
    shape = (horizon, routing.tokens, routing.layers, routing.experts)
    right = np.zeros(shape, np.float32)
    ids = np.broadcast_to(routing.ids.astype(np.int64), (horizon, *routing.ids.shape))
    np.put_along_axis(right, ids, 0.9, axis=3)
    noise = rng.random(shape, dtype=np.float32)
    if name == "random":
        return noise
    if name == "sure":
        return np.ones(shape, np.float32)
    if name == "turncoat":  # right until it is trusted, then wrong
        wrong = (np.arange(routing.tokens) // 20) % 2 == 1
        right[:, wrong] = 0.9 - right[:, wrong]
    if name == "wrong":
        return np.float32(0.9) - right
    if name == "half":
        return np.where(noise < 0.5, right, noise)
    return right


@st.composite
def cases(draw: st.DrawFn, most_tokens: int) -> tuple[Routing, Outcome, np.ndarray, Link, int]:
    seed = draw(st.integers(0, 2**31))
    experts = draw(st.integers(2, 10))
    top = draw(st.integers(1, min(3, experts)))
    tokens, layers = draw(st.integers(1, most_tokens)), draw(st.integers(1, 5))
    routing = random_routing(seed, tokens, layers, experts, top)
    link = Link(
        transfer=draw(st.sampled_from([0.1, 0.3, 0.5, 1.0, 1.7, 2.0, 4.0, 10.0])),
        compute=draw(st.sampled_from([1.0, 0.25])),
        horizon=draw(st.integers(1, 3)),
        confidence=draw(st.sampled_from([0.5, 0.8, 1.0])),
    )
    guesses = guesses_by(draw(st.sampled_from(PREDICTORS)), routing, link.horizon, seed)
    ways = draw(st.integers(0, experts))
    return routing, cached(routing, ways), guesses, link, draw(st.sampled_from([1, 3, 8]))


def state_for(routing: Routing, link: Link, chunks: int) -> BetsState:
    return BetsState(
        *(routing.layers, routing.experts, 4), classes=max(1, link.horizon), chunks=chunks
    )


@settings(deadline=None, max_examples=60)
@given(cases(most_tokens=40))
def test_c_and_python_take_the_same_course(
    case: tuple[Routing, Outcome, np.ndarray, Link, int],
) -> None:
    routing, outcome, guesses, link, chunks = case
    fast = Bets(state_for(routing, link, chunks))
    slow = ReferenceBets(state_for(routing, link, chunks))
    own = run_timeline(routing, outcome, guesses, link, fast)
    assert own == play(routing, outcome, guesses, link, slow)
    for name in KNOWN:
        one, other = getattr(fast.state, name), getattr(slow.state, name)
        np.testing.assert_array_equal(one, other, err_msg=name)
    for name in SCALARS:
        assert getattr(fast, name) == getattr(slow.state, name)
    assert fast.off == bool(slow.state.off)


def without_bets(routing: Routing, outcome: Outcome, guesses: np.ndarray, link: Link) -> Course:
    idle = dataclasses.replace(link, horizon=0)
    return run_timeline(routing, outcome, guesses, idle, Bets(state_for(routing, idle, 1)))


@settings(deadline=None, max_examples=60)
@given(cases(most_tokens=400))
def test_no_predictor_loses_more_than_one_percent(
    case: tuple[Routing, Outcome, np.ndarray, Link, int],
) -> None:
    routing, outcome, guesses, link, chunks = case
    bets = Bets(state_for(routing, link, chunks))
    own = run_timeline(routing, outcome, guesses, link, bets)
    none = without_bets(routing, outcome, guesses, link)
    assert own.seconds <= 1.01 * none.seconds
    steps = routing.tokens * routing.layers
    assert own.seconds == pytest.approx(steps * link.compute + own.stall)
    assert own.used + own.late + own.demands == none.demands
    # Of what was issued, only the last layers' bets have no outcome.
    over = own.issued - own.used - own.late - own.wasted - own.cancelled
    assert 0 <= over <= bets.state.most
    useful = (own.used + own.late + own.demands) * link.transfer
    assert own.moved >= useful - 1e-9
    assert own.wasted_seconds <= own.wasted * link.transfer + 1e-9


def test_a_bet_that_has_arrived_costs_nothing_and_a_late_one_its_rest() -> None:
    # The second of two layers always misses expert 1. A layer takes 1 s, half of it unrouted.
    ids = np.tile(np.array([[[0], [1]]]), (50, 1, 1))
    routing = Routing(ids, 2)
    hits, residents = np.zeros(ids.shape, np.uint8), np.zeros((50, 2, 2), np.uint8)
    outcome = Outcome(hits, np.zeros(2, np.int64), residents)
    outcome.hits[:, 0] = 1
    residents[:, 0, 0] = 1
    guesses = np.zeros((1, 50, 2, 2), np.float32)
    guesses[:, :, 1, 1] = 0.99
    quick = run_timeline(routing, outcome, guesses, Link(0.5, 1.0, 0.5), Bets(BetsState(2, 2, 4)))
    assert (quick.used, quick.late, quick.stall) == (50, 0, 0.0)
    bold = Bets(BetsState(2, 2, 4, allowance=1.0))
    slow = run_timeline(routing, outcome, guesses, Link(1.5, 1.0, 0.5), bold)
    assert (slow.late, slow.stall) == (50, pytest.approx(25.0))  # one second of 1.5 is hidden


def test_a_predictor_of_permuted_experts_turns_itself_off() -> None:
    routing = random_routing(5, 3000, 4, 16, 2)
    outcome = cached(routing, 4)
    link = Link(0.5, 1.0)
    guesses = guesses_by("half", routing, 1, 5)
    issued = {}
    for name, taken in (("own", guesses), ("permuted", np.roll(guesses, 7, axis=3))):
        bets = Bets(BetsState(4, 16, 4))
        course = run_timeline(routing, outcome, np.ascontiguousarray(taken), link, bets)
        issued[name] = course.issued / routing.tokens
    assert issued["own"] > 1
    assert issued["permuted"] < 0.1 * issued["own"]


def moment(**changes: float) -> Moment:
    """Layer 0 is next, nothing is under way, a transfer and a layer take 1 s."""
    usual = {"ahead": 1, "room": 2, "gate": 1.0, "transfer": 1.0, "compute": 1.0, "confidence": 1.0}
    return Moment(**{**usual, **changes})


def test_candidates_are_the_likeliest_up_to_the_confidence() -> None:
    guesses = np.array([0.3, 0.05, 0.55, 0.3], np.float32)
    there = np.array([0, 0, 1, 0], np.uint8)
    for confidence, expected in ((0.4, []), (0.5, [0, 3]), (1.0, [0, 3])):
        bets = Bets(BetsState(1, 4, 4))
        at = moment(room=4, transfer=0.25, confidence=confidence)
        assert bets.choose(at, guesses, there) == expected


@pytest.mark.parametrize(("stall", "chosen"), [(0.0, []), (0.04, [0]), (0.25, [0, 3])])
@pytest.mark.parametrize("kind", [Bets, ReferenceBets])
def test_bets_save_no_more_than_is_waited(
    kind: type[Bets] | type[ReferenceBets], stall: float, chosen: list[int]
) -> None:
    # Each saves the stall with a probability of nearly 0.8: the first leaves a fifth of it.
    guesses, there = np.array([0.8, 0.0, 0.0, 0.8], np.float32), np.zeros(4, np.uint8)
    bets = kind(BetsState(1, 4, 4))
    at = moment(room=4, elapsed=1e6, transfer=0.25, stall=stall)
    assert bets.choose(at, guesses, there) == chosen


def test_bets_that_lose_are_off_until_proposals_are_worth_it_again() -> None:
    bets = Bets(BetsState(1, 4, 2))
    there = np.zeros(4, np.uint8)
    guess = np.array([0.9, 0.0, 0.0, 0.0], np.float32)

    def play_one(right: bool) -> int:
        at = moment(elapsed=1e6, transfer=4.0)
        issued = len(bets.choose(at, guess, there))
        bets.state.bins[:] = 0  # no calibration: the guess is believed for ever
        bets.judge(0, [0 if right else 1], fetch=True, transfer=4.0)
        return issued

    assert play_one(True) == 1
    for _ in range(600):
        play_one(False)
    assert bets.off
    assert play_one(False) == 0
    assert bets.withheld > 0
    for _ in range(400):
        play_one(True)
    assert not bets.off
    assert play_one(True) == 1
    assert bets.switches == 2


def test_guesses_become_probabilities() -> None:
    bets = Bets(BetsState(1, 20, 2))
    rng = np.random.default_rng(2)
    for _ in range(2000):
        guess = rng.random(20).astype(np.float32)
        bets.choose(moment(room=0), guess, np.zeros(20, np.uint8))
        came = np.flatnonzero(rng.random(20) < guess**2).tolist()
        bets.judge(0, came, fetch=True, transfer=1.0)
    for guess in (0.1, 0.3, 0.5, 0.7, 0.9):
        assert bets.calibrated(guess) == pytest.approx(guess**2, abs=0.05)


def test_nothing_is_issued_before_the_transfer_time_is_known() -> None:
    bets = Bets(BetsState(1, 2, 2))
    at = moment(elapsed=100.0, transfer=0.0)
    assert bets.choose(at, np.ones(2, np.float32), np.zeros(2, np.uint8)) == []


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="Got layers"):
        BetsState(1, 2, 0)
    bets = Bets(BetsState(2, 4, 2))
    at = moment()
    with pytest.raises(ValueError, match="Got guesses"):
        bets.choose(at, np.ones(3), np.zeros(4, np.uint8))
    at.layer = 2
    with pytest.raises(ValueError, match=r"Got at\.layer = 2"):
        bets.choose(at, np.ones(4), np.zeros(4, np.uint8))
    with pytest.raises(ValueError, match="Got layer = 2"):
        bets.judge(2, [], False, 1.0)
    with pytest.raises(ValueError, match="wanted = "):
        bets.judge(0, [4], False, 1.0)
    routing = random_routing(0, 2, 2, 4, 2)
    outcome, link = cached(routing, 2), Link(1.0, 1.0)
    with pytest.raises(ValueError, match="Got guesses"):
        run_timeline(routing, outcome, np.zeros((1, 2, 2, 3), np.float32), link, bets)
    right = np.zeros((1, 2, 2, 4), np.float32)
    with pytest.raises(ValueError, match="without residents"):
        run_timeline(routing, dataclasses.replace(outcome, resident=None), right, link, bets)
    with pytest.raises(ValueError, match="Got Link"):
        run_timeline(routing, outcome, right, Link(0.0, 1.0), bets)


def test_what_is_no_number_is_nobodys_guess() -> None:
    state = BetsState(1, 4, 2)
    for bets in (Bets(state), ReferenceBets(state)):
        at = Moment(layer=0, ahead=1, room=2, transfer=1.0, gate=2.0, compute=2.0, confidence=1.0)
        guesses = np.array([np.nan, 0.9, np.inf, -np.inf])
        assert bets.choose(at, guesses, np.zeros(4, np.uint8)) == []
        bets.judge(0, [1], fetch=True, transfer=1.0)
        assert np.isfinite(state.bins).all()
