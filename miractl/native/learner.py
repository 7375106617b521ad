"""How soon each expert is used again, learned online in C from the routing alone.

The arrays are numpy's, so that they can be looked at, saved and loaded.
"""

import copy
import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from miractl.native.library import library

Floats = NDArray[np.float32]
FEATURES, AVERAGES, CONTEXTS, COUNTS = 9, 4, 8, 3  # as in brain.h and learner.c
WINDOW = 10  # tokens until a score is judged
WEIGHT_RATE, TABLE_RATE = 0.05, 0.018
PSEUDO_ROWS = 4.0  # prior counts of each table, spread evenly
START_WEIGHTS = (0.4, 0.4, 0.4, 0.3, 0.0, 0.0, 0.0, 0.0, -1.0)
MOST_TOKENS_AHEAD = 1000

SHARED = ("weights", "weight_sums", "bias", "bias_sums", "table", "table_sums", "counts", "totals")
_ARRAYS = (
    *SHARED,
    *(
        "trails",
        "averages",
        "gate",
        "features",
        "ids",
        "starts",
        "lessons",
        "begun",
        "scores",
        "scratch",
    ),
)


def discount_for(slots: float, top: int) -> float:
    """How fast a later use counts less, with so many slots a layer: 1 - 1 / (1 + slots / k)."""
    return 1 - 1 / (1 + slots / top)


def window_for(slots: float, top: int) -> int:
    """Tokens until a score is judged, with so many slots a layer: all that counts, and no more."""
    return 2 + math.ceil(2 * slots / top)


class _Learner(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("layers", "experts", "lanes", "top", "window")),
        *((name, ctypes.c_float) for name in ("discount", "weight_rate", "table_rate")),
        *((name, ctypes.c_int64) for name in ("token", "begun_token", "begun_lesson")),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
    ]


class LearnerState:
    """All that a learner knows. brain.h has the shapes."""

    def __init__(
        self,
        layers: int,
        experts: int,
        top: int,
        discount: float,
        *,
        window: int = WINDOW,
        weight_rate: float = WEIGHT_RATE,
        table_rate: float = TABLE_RATE,
    ) -> None:
        """Raises ValueError for sizes that make no model or a discount not within 0 to 1."""
        if not (layers > 0 and 0 < top <= experts <= 1 << 16 and 0 < window <= MOST_TOKENS_AHEAD):
            raise ValueError(f"Got {layers = }, {experts = }, {top = }, {window = }")
        if not 0 < discount < 1:
            raise ValueError(f"Got {discount = } but expected more than 0 and less than 1")
        self.layers, self.experts, self.top = layers, experts, top
        self.discount, self.window = discount, window
        self.weight_rate, self.table_rate = weight_rate, table_rate
        self.lanes = lanes = -(-experts // 8) * 8
        prior = top / experts
        self.weights = np.array(START_WEIGHTS, np.float32)
        self.weight_sums = np.full(FEATURES, 1e-3, np.float32)
        self.bias = np.zeros((layers, lanes), np.float32)
        self.bias_sums = np.ones_like(self.bias)
        self.table = np.zeros((layers, CONTEXTS, experts, lanes), np.float32)
        self.table_sums = np.ones_like(self.table)
        self.counts = np.full((COUNTS, layers, experts, lanes), PSEUDO_ROWS * prior, np.float32)
        self.totals = np.full((COUNTS, layers, lanes), PSEUDO_ROWS, np.float32)
        self.scratch = np.zeros((2, lanes), np.float32)
        self.lessons = np.zeros(1, np.int64)
        self._begin()

    def _begin(self) -> None:
        """What describes the stream, as it is before the first token."""
        layers, lanes, window = self.layers, self.lanes, self.window
        self.token = -1
        self.trails = np.zeros((COUNTS, layers, lanes), np.float32)
        self.averages = np.full((layers, AVERAGES, lanes), self.top / self.experts, np.float32)
        self.gate = np.zeros((layers, lanes), np.float32)
        self.features = np.zeros((window + 2, layers, FEATURES, lanes), np.float32)
        self.ids = np.zeros((window + 2, layers, self.top), np.uint16)
        self.starts = np.zeros(window + 2, np.uint8)
        self.scores = np.zeros((layers, lanes), np.float32)
        self.begun = np.zeros((layers, lanes), np.float32)

    def beside(self) -> "LearnerState":
        """The state of another stream that learns into the same tables."""
        other = copy.copy(self)
        other._begin()
        return other

    @property
    def stream_bytes(self) -> int:
        """What one more stream takes."""
        own = (self.trails, self.averages, self.gate, self.features, self.ids, self.scores)
        return sum(array.nbytes for array in own)


class Learner:
    """A learner and its state. Not thread-safe: its owner holds the lock."""

    kind = 0  # of a pupil

    def __init__(self, state: LearnerState) -> None:
        """Raises MiractlError without the library."""
        self.state = state
        self._struct = _Learner(
            *(state.layers, state.experts, state.lanes, state.top, state.window),
            *(state.discount, state.weight_rate, state.table_rate, state.token, -1, 0),
            *(getattr(state, name).ctypes.data for name in _ARRAYS),
        )
        self._learn = library().mira_learn
        self.address = ctypes.addressof(self._struct)  # valid as long as the learner lives
        # Log-odds of a use soon, [experts] of each layer, as of its last token: not to be written.
        self.rows: list[Floats] = list(state.scores[:, : state.experts])

    @property
    def token(self) -> int:
        """Tokens seen, less one."""
        return int(self._struct.token)

    def record(
        self, layer: int, ids: NDArray[Any], probabilities: NDArray[Any], starts: bool = False
    ) -> None:
        """One token's routing of one layer: ids [k], probabilities [k].

        Layers come in order, 0 first; `starts` at layer 0 says that the token begins a text. Raises
        ValueError for experts that do not exist.
        """
        state = self.state
        if not 0 <= layer < state.layers:
            raise ValueError(f"Got {layer = } but expected 0 to {state.layers - 1}")
        if ids.shape != (state.top,) or probabilities.shape != (state.top,):
            raise ValueError(f"Got ids {ids.shape}, probabilities {probabilities.shape}")
        if ids.min() < 0 or ids.max() >= state.experts:
            raise ValueError(f"Got ids {ids.tolist()} of {state.experts} experts")
        chosen = np.ascontiguousarray(ids, dtype=np.uint16)
        gates = np.ascontiguousarray(probabilities, dtype=np.float32)
        self._learn(self.address, layer, starts, chosen.ctypes.data, gates.ctypes.data)
