"""Which experts the next layers will want: what a predictor is, and the simplest one.

A guess is the probability that any token of the step uses an expert. It may be wrong at no cost but
time, and whoever acts on it keeps a record of how often guesses like it came true, so it need not
be calibrated.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from miractl.native.teller import Teller
from miractl.policy.keys import NOBODY
from miractl.policy.routing import Ids, Routed, Segment

Probabilities = npt.NDArray[np.float64]  # [experts]
Tables = Mapping[str, npt.NDArray[Any]]  # floating numbers, by name

RECENT = 0.005  # rate of the averages of use, a token: the last 200 or so
LAST = 16  # tokens of a prompt, at its end, that tables learn from


class Predictor(Protocol):
    """Guesses the experts of the layers to come."""

    mode: str

    def observe(self, step: Routed, hidden: Any) -> None:
        """A layer is routed; `hidden` [tokens, H] are the states that its router saw."""

    def guess(self, ahead: int) -> Probabilities | None:
        """Of the layer so many after the one observed last; None where nothing can be said.

        Good until the next guess of as many layers ahead.
        """

    def fade(self) -> None:
        """Forget half of what was counted, so that what is new counts more."""


@runtime_checkable
class TablePredictor(Predictor, Protocol):
    """One that goes by tables, learned from the routing."""

    def tables(self) -> Tables:
        """What was learned and is worth keeping."""

    def recall(self, tables: Tables) -> None:
        """Start from what an earlier run learned, if it learned any. Raises ValueError: no fit."""


@runtime_checkable
class Telling(Predictor, Protocol):
    """One that leaves most of what one new token decides to the library."""

    def teller(self, step: Routed) -> Teller[Any] | None:
        """Who follows the layer now, and tells of the next, in place of `observe` and `guess`.

        None: nobody does.
        """


def put_back(own: Tables, tables: Tables) -> bool:
    """Fill arrays with the tables of their names; False if there is none. Raises ValueError."""
    if not own.keys() & tables.keys():
        return False
    for name, array in own.items():
        if name not in tables or tables[name].shape != array.shape:
            raise ValueError(f"Got no table {name} of {array.shape}")
    for name, array in own.items():
        array[:] = tables[name]
    return True


def owned(step: Routed) -> list[Segment]:
    """The segments that are somebody's."""
    return [segment for segment in step.segments if segment.sequence != NOBODY]


def is_prompt(step: Routed) -> bool:
    """Whether some sequence has several tokens in the step."""
    return len(step.ids) > len(step.segments)


def union(each: npt.NDArray[np.float64]) -> Probabilities:
    """Probability that any of the tokens uses an expert, from [tokens, experts] for each."""
    result: Probabilities = each[0] if len(each) == 1 else 1 - np.prod(1 - each, axis=0)
    return result


class Popularity:
    """By how often each expert was used lately, whoever used it.

    It also stands in for the others in prompts: their tokens want most experts of a layer, and the
    few that they leave alone are those that nobody wants.
    """

    mode = "popularity"

    def __init__(self, layers: int, experts: int, top_k: int) -> None:
        self._share = np.full((layers, experts), top_k / experts)
        self._layer, self._tokens = 0, 1
        self._rows = np.arange(layers)[:, None]

    def observe(self, step: Routed, hidden: Any = None) -> None:
        """Move the averages on by the step's tokens."""
        ids = self._ids(step)
        self._layer, self._tokens = step.layer, len(ids)
        if len(ids):
            self._count(step.layer, ids)

    def count(self, ids: npt.NDArray[np.integer[Any]]) -> None:
        """Move the averages on by one token, ids [layers, k]."""
        self._share *= 1 - RECENT
        np.add.at(self._share, (self._rows, ids), RECENT)

    def _count(self, layer: int, ids: Ids) -> None:
        row = self._share[layer]
        kept = (1 - RECENT) ** len(ids)
        counts = np.bincount(ids.reshape(-1), minlength=len(row))
        row *= kept
        row += (1 - kept) * counts / len(ids)

    def guess(self, ahead: int) -> Probabilities | None:
        """1 - (1 - share)^tokens."""
        layer = self._layer + ahead
        if layer >= len(self._share) or not self._tokens:
            return None
        result: Probabilities = 1 - (1 - self._share[layer]) ** self._tokens
        return result

    def fade(self) -> None:
        """Draw the averages half way to their mean."""
        self._share += (self._share.mean(axis=1, keepdims=True) - self._share) / 2

    def tables(self) -> Tables:
        """The averages."""
        return {"popularity": self._share}

    def recall(self, tables: Tables) -> None:
        """As the protocol says."""
        put_back(self.tables(), tables)

    @staticmethod
    def _ids(step: Routed) -> Ids:
        parts = owned(step)
        if sum(map(len, parts)) == len(step.ids):
            return step.ids
        rows = [step.ids[part.start : part.stop] for part in parts]
        return np.concatenate(rows) if rows else step.ids[:0]


class Shuffled:
    """A predictor whose experts are permuted, the same way for ever: a control.

    Its guesses are as sure as the real ones and as right as chance; bets on it must end.
    """

    def __init__(self, inner: TablePredictor, layers: int, experts: int, seed: int = 0) -> None:
        self.mode, self._inner, self._layer = "shuffle", inner, 0
        rng = np.random.default_rng(seed)
        self._order = rng.permuted(np.tile(np.arange(experts), (layers, 1)), axis=1)

    def observe(self, step: Routed, hidden: Any) -> None:
        """Told the truth."""
        self._layer = step.layer
        self._inner.observe(step, hidden)

    def guess(self, ahead: int) -> Probabilities | None:
        """The inner guess, of other experts."""
        found = self._inner.guess(ahead)
        return None if found is None else found[self._order[self._layer + ahead]]

    def fade(self) -> None:
        """As the inner one does."""
        self._inner.fade()

    def tables(self) -> Tables:
        """The inner one's, in its own order."""
        return self._inner.tables()

    def recall(self, tables: Tables) -> None:
        """As the protocol says."""
        self._inner.recall(tables)
