"""Which experts the next layer will want, learned online in C from the routing alone.

The arrays are numpy's, so that they can be looked at, saved and loaded.
"""

import copy
import ctypes
import struct
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from miractl.native.library import library, short_calls
from miractl.native.replay import Routing, check_sizes, routing_struct

Floats = NDArray[np.float32]
HINTS, SOURCES, BINS = 9, 4, 20  # as in brain.h
WEIGHT_RATE, TABLE_RATE = 0.05, 0.07
PSEUDO_ROWS = 4.0  # prior counts of each table, spread evenly
FADED_SUMS = 3.0  # of AdaGrad, at most, when a table is to change again
KEPT = ("weights", "table", "counts", "totals", "averages")  # of what is learned of the model
START_WEIGHTS = (0.2, 0.2, 0.2, 0.2, 0.0, 0.0, 0.0, 0.0, -2.0)

_tell = struct.Struct("@PP").pack_into
_ARRAYS = (
    *("weights", "weight_sums", "table", "table_sums", "counts", "totals", "averages", "hints"),
    *("scores", "lessons", "begun", "scored", "ids", "scratch"),
)


class _Predictor(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("layers", "experts", "lanes", "top", "ahead")),
        *((name, ctypes.c_float) for name in ("weight_rate", "table_rate")),
        *((name, ctypes.c_int64) for name in ("token", "begun_token", "begun_lesson")),
        ("begins", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
    ]


class PredictorState:
    """All that a predictor knows. brain.h has the shapes."""

    def __init__(
        self,
        layers: int,
        experts: int,
        top: int,
        *,
        ahead: int = 1,
        weight_rate: float = WEIGHT_RATE,
        table_rate: float = TABLE_RATE,
    ) -> None:
        """Raises ValueError for sizes that make no model."""
        if not (layers > 0 and 0 < top <= experts <= 1 << 16 and ahead > 0):
            raise ValueError(f"Got {layers = }, {experts = }, {top = }, {ahead = }")
        self.layers, self.experts, self.top, self.ahead = layers, experts, top, ahead
        self.weight_rate, self.table_rate = weight_rate, table_rate
        self.lanes = lanes = -(-experts // 8) * 8
        self.token, self.begins = -1, 0
        prior = top / experts
        pairs = (layers, SOURCES, experts, lanes)
        self.weights = np.array(START_WEIGHTS, np.float32)
        self.weight_sums = np.full(HINTS, 1e-3, np.float32)
        self.table = np.zeros(pairs, np.float32)
        self.table_sums = np.ones(pairs, np.float32)
        self.counts = np.full(pairs, PSEUDO_ROWS * prior, np.float32)
        self.totals = np.full((layers, SOURCES, lanes), PSEUDO_ROWS, np.float32)
        self.averages = np.full((layers, SOURCES, lanes), prior, np.float32)
        self.lessons = np.zeros(1, np.int64)
        self._forget()

    def branch(self, tokens: int) -> Self:
        """The same knowledge, of so many `tokens`, for another text: what one learns, all know."""
        other = copy.copy(self)
        other.token = tokens - 1
        other._forget()
        return other

    def fade(self) -> None:
        """Halve what was counted, and let the learned numbers move again."""
        prior = PSEUDO_ROWS * self.top / self.experts
        self.counts -= (self.counts - prior) / 2
        self.totals -= (self.totals - PSEUDO_ROWS) / 2
        np.minimum(self.table_sums, FADED_SUMS, out=self.table_sums)
        self.lessons += 1

    def _forget(self) -> None:
        self.hints = np.zeros((self.layers, HINTS, self.lanes), np.float32)
        self.scores = np.zeros((self.layers, self.lanes), np.float32)
        self.begun = np.zeros_like(self.scores)
        self.scored = np.full(self.layers, -1, np.int64)
        self.ids = np.zeros((2, self.layers, self.top), np.uint16)
        self.scratch = np.zeros((2, self.lanes), np.float32)


class _Foretold(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ids", "weights", "guess")),
        *((name, ctypes.c_int32) for name in ("tokens", "top", "experts")),
    )


class Foretold:
    """What a router that is asked early says of [experts], as `guess`."""

    def __init__(self, guess: NDArray[np.float64]) -> None:
        """Raises MiractlError without the library."""
        self._struct = _Foretold(guess=guess.ctypes.data, experts=len(guess))
        self._guess, self._address = guess, ctypes.addressof(self._struct)
        self._memory = memoryview(self._struct).cast("B")
        self._take = short_calls().mira_lookahead

    def shape(self, tokens: int, top: int) -> None:
        """What it says has this shape from now on."""
        self._struct.tokens, self._struct.top = tokens, top

    def take(self, ids: int, weights: int) -> None:
        """Set the guess.

        Addresses of int64 and float32 [tokens, top]; 0: no weights.
        """
        take = self._take
        _tell(self._memory, 0, ids, weights)
        take(self._address)


def recall(guess: NDArray[np.float64], ids: int, count: int) -> float:
    """Share of the different experts that are among as many likeliest by guess [experts].

    They are so many int64 at address `ids`; those that do not exist are passed over.
    """
    guess = np.ascontiguousarray(guess, np.float64)
    return float(library().mira_recall(guess.ctypes.data, len(guess), ids, count))


class Predictor:
    """A predictor and its state. Not thread-safe: its owner holds the lock.

    While tokens are generated a `Teller` follows the layers.
    """

    kind = 1  # of a pupil

    def __init__(self, state: PredictorState) -> None:
        """Raises MiractlError without the library."""
        self.state = state
        self._struct = _Predictor(
            *(state.layers, state.experts, state.lanes, state.top, state.ahead),
            *(state.weight_rate, state.table_rate, state.token, -1, 0, state.begins),
            *(getattr(state, name).ctypes.data for name in _ARRAYS),
        )
        self._library = short_calls()
        self.address = ctypes.addressof(self._struct)  # valid as long as the predictor lives

    @property
    def ids(self) -> NDArray[np.uint16]:
        """Experts of the last token, [layers, k]; not to be written to."""
        found: NDArray[np.uint16] = self.state.ids[self._struct.token & 1]
        return found

    def begin(self, starts: bool = False) -> None:
        """Begin a token; `starts` says that it begins a text."""
        self._library.mira_begin(self.address, starts)

    def predict(self, layer: int) -> None:
        """Rate the experts of the layer by what came before.

        Within a token layers come in order, each predicted and then confirmed, and predicted up to
        `ahead` layers before.
        """
        if not 0 <= layer < self.state.layers:
            raise ValueError(f"Got {layer = } but expected 0 to {self.state.layers - 1}")
        self._library.mira_predict(self.address, layer)

    def probabilities(self, layer: int) -> Floats:
        """Of each expert of a predicted layer, [experts]."""
        scores = self.state.scores[layer, : self.state.experts]
        result: Floats = np.float32(1) / (np.float32(1) + np.exp(-scores))
        return result

    def confirm(self, layer: int, ids: NDArray[Any]) -> None:
        """Take in what the layer chose, ids [k], and with the last layer learn from all.

        Raises ValueError for experts that do not exist.
        """
        state = self.state
        if ids.shape != (state.top,) or ids.min() < 0 or ids.max() >= state.experts:
            raise ValueError(f"Got ids {ids.tolist()} of {state.experts} experts")
        chosen = np.ascontiguousarray(ids, dtype=np.uint16)
        self._library.mira_confirm(self.address, layer, chosen.ctypes.data)

    def foresee(self, routing: Routing) -> Floats:
        """Predict and learn a whole recording: probabilities [tokens, layers, experts].

        Each as known `ahead` layers before; of the first `ahead` layers as the token began. Raises
        ValueError for a recording of another model.
        """
        state = self.state
        check_sizes("predictor", state, routing)
        probabilities = np.zeros((routing.tokens, routing.layers, routing.experts), np.float32)
        recording = routing_struct(routing)
        library().mira_foresee(
            ctypes.addressof(recording),
            self.address,
            probabilities.ctypes.data,
        )
        return probabilities
