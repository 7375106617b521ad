"""Predictors: what each learns from the stream, and that sequences do not mix."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from miractl.native.predictor import recall
from miractl.policy.foresight import Foresight
from miractl.policy.markov import MarkovTable
from miractl.policy.position import HYBRID_TOKENS, Hybrid, PositionTable, place_of
from miractl.policy.prediction import Popularity, Predictor, Shuffled, TablePredictor, union
from miractl.policy.resampling import EVERY, SETTLED, Resampled
from miractl.policy.routing import Routed, Segment
from miractl.policy.streams import MOST, Streams

LAYERS, EXPERTS = 3, 8
MAKERS: dict[str, Callable[[], TablePredictor]] = {
    "markov": lambda: MarkovTable(LAYERS, EXPERTS, 1),
    "token-position": lambda: PositionTable(LAYERS, EXPERTS, 1),
    "hybrid": lambda: Hybrid(LAYERS, EXPERTS, 1),
    "popularity": lambda: Popularity(LAYERS, EXPERTS, 1),
    "learned": lambda: Foresight(LAYERS, EXPERTS, 1, horizon=2),
    "shuffle": lambda: Shuffled(Popularity(LAYERS, EXPERTS, 1), LAYERS, EXPERTS),
}
pytestmark = pytest.mark.usefixtures("kernels")


def step(layer: int, *tokens: int, position: int = 0, sequence: int = 0) -> Routed:
    """One expert for each token of one sequence."""
    ids = np.array(tokens, np.int64)[:, None]
    segment = Segment(sequence, 0, len(tokens), position)
    return Routed(layer, ids, np.ones(ids.shape, np.float32), (segment,), position)


def batch(layer: int, *tokens: int, position: int = 0) -> Routed:
    """One new token for each of several sequences."""
    ids = np.array(tokens, np.int64)[:, None]
    segments = tuple(Segment(at, at, at + 1, position) for at in range(len(tokens)))
    return Routed(layer, ids, np.ones(ids.shape, np.float32), segments, position)


def token(predictor: Predictor, position: int, *experts: int) -> list[np.ndarray | None]:
    """One token through all layers; guesses of the layer after each."""
    guesses = []
    for layer, expert in enumerate(experts):
        predictor.observe(step(layer, expert, position=position), None)
        guess = predictor.guess(1)  # overwritten by the next
        guesses.append(None if guess is None else guess.copy())
    return guesses


@pytest.mark.parametrize("name", ["markov", "hybrid", "learned"])
def test_a_layer_that_follows_another_is_learned(name: str) -> None:
    predictor = MAKERS[name]()
    rng = np.random.default_rng(0)
    for position in range(500):
        first = int(rng.integers(EXPERTS))
        token(predictor, position, first, (first + 3) % EXPERTS, (5 * first) % EXPERTS)
    guesses = token(predictor, 500, 2, 5, 2)
    assert guesses[0] is not None
    assert guesses[1] is not None
    assert guesses[0].argmax() == 5
    assert guesses[1].argmax() == 2
    assert guesses[2] is None  # nothing follows the last layer
    predictor.observe(step(0, 6, position=501), None)
    further = predictor.guess(2)
    assert further is not None
    assert further.argmax() == 6 * 5 % EXPERTS


@pytest.mark.parametrize("name", list(MAKERS))
def test_guesses_are_probabilities_whatever_comes(name: str) -> None:
    predictor, rng = MAKERS[name](), np.random.default_rng(1)
    for position in range(40):
        tokens = rng.integers(EXPERTS, size=(LAYERS, rng.integers(1, 20)))
        for layer in range(LAYERS):
            one_each = position % 3 == 2
            now = batch(layer, *tokens[layer][:5]) if one_each else step(layer, *tokens[layer])
            predictor.observe(now, None)
            for ahead in (1, 2):
                guess = predictor.guess(ahead)
                if guess is not None:
                    assert guess.shape == (EXPERTS,)
                    assert ((guess >= 0) & (guess <= 1)).all()
                else:
                    assert layer + ahead >= LAYERS
        predictor.fade()


@pytest.mark.parametrize("name", ["markov", "popularity"])
def test_more_tokens_want_more_experts(name: str) -> None:
    predictor = MAKERS[name]()
    predictor.observe(step(0, 1), None)
    one = predictor.guess(1)
    predictor.observe(step(0, 1, 2, 3), None)
    three = predictor.guess(1)
    assert one is not None
    assert three is not None
    assert (three > one).all()


def test_markov_pairs_neighbouring_layers_of_the_same_tokens_only() -> None:
    table = MarkovTable(LAYERS, EXPERTS, 1)
    table.observe(step(0, 0))
    table.observe(step(2, 1))  # layer 1 was skipped
    table.observe(step(1, 2, 3))  # and these are other tokens
    table.observe(step(0, 0))
    guess = table.guess(1)
    assert guess is not None
    assert guess[[0, 1, 4]].tolist() == pytest.approx([guess[0]] * 3)


@pytest.mark.parametrize("name", ["markov", "learned"])
def test_sequences_do_not_mix(name: str) -> None:
    # Each sequence repeats its own expert: a past that mixed them could not tell.
    predictor = MAKERS[name]()
    for position in range(300):
        experts = (1, 6) if position // 10 % 2 else (3, 4)
        for layer in range(LAYERS):
            predictor.observe(batch(layer, *experts, position=position), None)
    predictor.observe(batch(0, 1, 6, position=301), None)
    both = predictor.guess(1)
    assert both is not None
    assert set(np.argsort(-both)[:2].tolist()) == {1, 6}


@pytest.mark.parametrize("name", ["markov", "learned"])
def test_several_tokens_want_what_any_of_them_wants(name: str) -> None:
    learned = MAKERS[name]()
    for position in range(100):
        token(learned, position, position % EXPERTS, position * 3 % EXPERTS, 1)

    def guess(*experts: int) -> np.ndarray:
        predictor = MAKERS[name]()
        predictor.recall(learned.tables())
        predictor.observe(batch(0, *experts), None)
        found = predictor.guess(1)
        assert found is not None
        return found

    each = np.stack([guess(1), guess(6), guess(3)])
    np.testing.assert_array_equal(guess(1, 6, 3), union(each))


def test_streams_forget_whoever_was_seen_longest_ago() -> None:
    streams: Streams[list[int]] = Streams(list)
    streams.of(Segment(0, 0, 1, 0)).append(7)
    for sequence in range(1, MOST):
        streams.of(Segment(sequence, 0, 1, 0))
    assert streams.of(Segment(0, 0, 1, 5)) == [7]
    streams.of(Segment(MOST, 0, 1, 0))
    assert len(streams) == MOST
    assert streams.of(Segment(0, 0, 1, 5)) == [7]
    assert streams.begin(Segment(0, 0, 1, 0)) == []  # begins anew


def test_positions_are_told_apart_by_powers_of_two() -> None:
    assert [place_of(position) for position in (0, 1, 2, 3, 4, 1023)] == [0, 1, 2, 2, 3, 10]
    table = PositionTable(LAYERS, EXPERTS, 1)
    for text in range(50):
        del text
        for position in range(8):
            token(table, position, *([1 if position < 4 else 6] * LAYERS))
    early, late = token(table, 2, 0, 0, 0)[0], token(table, 6, 0, 0, 0)[0]
    assert early is not None
    assert late is not None
    assert (early.argmax(), late.argmax()) == (1, 6)


def test_hybrid_changes_over_at_512_tokens() -> None:
    hybrid, markov = Hybrid(LAYERS, EXPERTS, 1), MarkovTable(LAYERS, EXPERTS, 1)
    position_table = PositionTable(LAYERS, EXPERTS, 1)
    for position in range(HYBRID_TOKENS + 1):
        each = [token(p, position, 1, 2, 3)[0] for p in (hybrid, markov, position_table)]
        same_as = 1 if position < HYBRID_TOKENS else 2
        np.testing.assert_array_equal(each[0], each[same_as])


def test_shuffled_guesses_are_the_same_of_other_experts() -> None:
    plain, shuffled = MAKERS["popularity"](), MAKERS["shuffle"]()
    for position in range(50):
        own, other = token(plain, position, 1, 2, 3), token(shuffled, position, 1, 2, 3)
    assert own[0] is not None
    assert other[0] is not None
    assert sorted(own[0]) == sorted(other[0])
    assert not np.array_equal(own[0], other[0])


@pytest.mark.parametrize("name", list(MAKERS))
def test_what_was_learned_can_be_started_with(name: str) -> None:
    first, second = MAKERS[name](), Resampled(MAKERS[name](), interval=10**9)
    for position in range(300):
        token(first, position, position % 3, 3 + position % 3, position % 2)
    kept = {name: table.copy() for name, table in first.tables().items()}
    second.recall(kept)
    for name_, table in second.tables().items():
        np.testing.assert_array_equal(table, kept[name_], err_msg=name_)
    guess = token(second, 0, 1, 4, 1)[0]
    assert guess is not None
    if name in ("markov", "hybrid", "learned"):
        assert guess.argmax() == 4
    MAKERS[name]().recall({})  # an earlier run that predicted otherwise
    with pytest.raises(ValueError, match="Got no table"):
        MAKERS[name]().recall({own: table[:1] for own, table in kept.items() if len(table) > 1})


def test_what_was_learned_of_one_layer_ahead_is_not_lost_on_two() -> None:
    one, two = (Foresight(LAYERS, EXPERTS, 1, horizon=horizon) for horizon in (1, 2))
    for position in range(300):
        token(one, position, position % 3, 3 + position % 3, position % 2)
    two.recall(one.tables())
    np.testing.assert_array_equal(
        two.tables()["foresight.1.table"], one.tables()["foresight.1.table"]
    )
    assert not two.tables()["foresight.2.table"].any()


class Fading:
    """Guesses one expert; counts how often it was told to fade."""

    mode = "markov"

    def __init__(self) -> None:
        self.faded = 0

    def observe(self, step: Routed, hidden: object) -> None:
        pass

    def guess(self, ahead: int) -> np.ndarray:
        return np.eye(EXPERTS)[1]

    def fade(self) -> None:
        self.faded += 1

    def tables(self) -> Mapping[str, np.ndarray]:
        return {}

    def recall(self, tables: Mapping[str, np.ndarray]) -> None:
        pass


def test_tables_are_sampled_anew_at_intervals() -> None:
    inner = Fading()
    predictor = Resampled(inner, interval=100)
    for position in range(250):
        token(predictor, position, 1, 1, 1)
    assert inner.faded == predictor.resampled == 2


def test_tables_are_sampled_anew_when_guesses_get_worse() -> None:
    inner = Fading()
    predictor = Resampled(inner, interval=10**9)
    for position in range(EVERY * SETTLED // 2):
        token(predictor, position, 1, 1, 1)
    assert inner.faded == 0
    for position in range(40 * EVERY):
        token(predictor, position, 2, 2, 2)
    assert inner.faded == 1


def test_a_union_is_not_used_only_if_nobody_uses_it() -> None:
    assert union(np.array([[0.5, 0.0], [0.5, 0.2]])).tolist() == pytest.approx([0.75, 0.2])


def test_padding_teaches_nothing() -> None:
    table = MarkovTable(LAYERS, EXPERTS, 1)
    for layer in range(LAYERS):
        ids = np.array([[layer]])
        segment = Segment(-1, 0, 1, 0)
        table.observe(Routed(layer, ids, np.ones((1, 1), np.float32), (segment,), 0))
        assert table.guess(1) is None


def test_recall_is_the_share_among_as_many_likeliest() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        guess = rng.permutation(12) / 12
        ids = rng.integers(0, 12, (int(rng.integers(1, 5)), 2))
        used = set(ids.reshape(-1).tolist())
        likeliest = set(np.argsort(-guess)[: len(used)].tolist())
        expected = len(used & likeliest) / len(used)
        assert recall(guess, ids.ctypes.data, ids.size) == pytest.approx(expected)
