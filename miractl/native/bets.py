"""Bets on the next layers, in C: which are worth their risk, and what they bring on one link.

Times are seconds. The arrays are numpy's, so that they can be looked at.
"""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from miractl.native.library import library
from miractl.native.predictor import BINS
from miractl.native.replay import Outcome, Routing, routing_struct

Floats = NDArray[np.float32]
ALLOWANCE = 0.008  # share of the time that bets may lose; a bound of 1 % with some to spare
PRICE = (
    0.15  # of a transfer in vain, in transfers, even if it delays nobody: it takes power and memory
)
FIRST_DEMAND = 0.5  # how often a layer has to fetch, before that is known

_INTEGERS = ("layers", "experts", "classes", "most", "chunks")
_ARRAYS = (
    *("demand", "bins", "guess", "asked", "proposal", "hidden", "risk"),
    *("sure", "told", "chosen"),
)
_EVENTS = ("issued", "used", "late", "wasted", "cancelled", "demands")


class _Bets(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in _INTEGERS),
        *((name, ctypes.c_double) for name in ("allowance", "price", "balance", "worth")),
        ("off", ctypes.c_int32),
        *((name, ctypes.c_int64) for name in ("switches", "withheld")),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
    ]


class _Link(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_double) for name in ("transfer", "compute", "routed", "confidence")),
        ("horizon", ctypes.c_int32),
    ]


class BetsState:
    """All that the choice of bets rests on. bets.h has the shapes."""

    def __init__(
        self,
        layers: int,
        experts: int,
        most: int,
        *,
        classes: int = 1,
        chunks: int = 1,
        allowance: float = ALLOWANCE,
        price: float = PRICE,
    ) -> None:
        """Raises ValueError for sizes that make no model."""
        if not (layers > 0 and 0 < experts <= 1 << 16 and most > 0 and classes > 0 and chunks > 0):
            raise ValueError(f"Got {layers = }, {experts = }, {most = }, {classes = }, {chunks = }")
        self.layers, self.experts, self.most = layers, experts, most
        self.classes, self.chunks = classes, chunks
        self.allowance, self.price = allowance, price
        self.balance, self.worth = 0.0, 1.0
        self.off, self.switches, self.withheld = 0, 0, 0
        self.demand = np.full(layers, FIRST_DEMAND)
        self.bins = np.zeros((classes, 3, BINS))
        self.guess = np.full((classes, layers, experts), -1, np.float32)
        self.asked = np.zeros((classes, layers), np.uint8)
        self.proposal = np.full((layers, most), -1, np.int32)
        self.hidden = np.zeros((layers, most))
        self.risk = np.zeros((layers, most))
        self.sure = np.zeros(experts)
        self.told = np.zeros(experts, np.float32)
        self.chosen = np.zeros(most, np.uint16)


class Moment(ctypes.Structure):
    """What is known when bets are placed; times count from now.

    The bets are for `layer`, `ahead` layers from the present one, by guesses of class `kind`, and
    at most `room` of them; candidates are the likeliest experts whose share of all guesses is
    `confidence`. `elapsed` counts from the beginning; `link`: until it is free; `gate`: until the
    next layer is routed; `transfer`: of one expert, 0 is not known yet and nothing is issued;
    `compute`: of one layer that waits for nothing; `promised`: at risk by what is on its way;
    `stall`: how long the layer is expected to wait without bets, infinite if that is not known.
    `link` and `promised` are moved on by what is issued.
    """

    layer: int
    ahead: int
    kind: int
    room: int
    elapsed: float
    link: float
    gate: float
    transfer: float
    compute: float
    promised: float
    confidence: float
    stall: float

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layer", "ahead", "kind", "room")),
        *((name, ctypes.c_double) for name in ("elapsed", "link", "gate", "transfer")),
        *((name, ctypes.c_double) for name in ("compute", "promised", "confidence", "stall")),
    )

    def __init__(self, *, stall: float = math.inf, **known: float) -> None:
        super().__init__(stall=stall, **known)


class Bets:
    """The gate and its ledger. Not thread-safe: its owner holds the lock."""

    def __init__(self, state: BetsState) -> None:
        """Raises MiractlError without the library."""
        self.state = state
        self._library = library()
        scalars = ("allowance", "price", "balance", "worth", "off", "switches", "withheld")
        self._struct = _Bets(
            *(getattr(state, name) for name in (*_INTEGERS, *scalars)),
            *(getattr(state, name).ctypes.data for name in _ARRAYS),
        )
        self._flags = np.zeros(state.experts, np.uint8)
        buffers = state.told, self._flags, state.chosen
        self._buffers = tuple(buffer.ctypes.data for buffer in buffers)
        self._address = ctypes.addressof(self._struct)

    def __getattr__(self, name: str) -> Any:
        if name in ("balance", "worth", "switches", "withheld"):
            return getattr(self._struct, name)
        raise AttributeError(name)

    @property
    def address(self) -> int:
        """Of the C structure; valid as long as the bets live."""
        return self._address

    @property
    def off(self) -> bool:
        """Whether nothing is issued because proposals lose."""
        return bool(self._struct.off)

    def choose(self, at: Moment, guesses: NDArray[Any], there: NDArray[Any]) -> list[int]:
        """Experts to bet on, likeliest first; moves `at` on.

        guesses [experts]: probabilities; there [experts]: 1 for those that need no bet. Raises
        ValueError for what does not belong to the model.
        """
        state = self.state
        if not (0 <= at.layer < state.layers and 0 <= at.kind < state.classes and at.ahead > 0):
            raise ValueError(f"Got {at.layer = }, {at.kind = }, {at.ahead = }")
        if guesses.shape != (state.experts,) or there.shape != (state.experts,):
            raise ValueError(f"Got guesses {guesses.shape}, there {there.shape}")
        state.told[:], self._flags[:] = guesses, there
        count = self._library.mira_bets_choose(self._address, ctypes.addressof(at), *self._buffers)
        found: list[int] = state.chosen[:count].tolist() if count else []
        return found

    def judge(self, layer: int, wanted: Sequence[int], fetch: bool, transfer: float) -> None:
        """Learn from a routed layer and the experts that it wanted.

        `fetch`: some of them had to be brought. Raises ValueError for another model's.
        """
        if not 0 <= layer < self.state.layers or not all(
            0 <= e < self.state.experts for e in wanted
        ):
            raise ValueError(f"Got {layer = }, {wanted = }")
        self._flags[:] = 0
        self._flags[list(wanted)] = 1
        self._library.mira_bets_judge(self._address, layer, self._buffers[1], fetch, transfer)

    def account(self, gained: float, lost: float, transfer: float) -> None:
        """Enter time gained and lost into the ledger."""
        self._library.mira_bets_account(self._address, gained, lost, transfer)

    def calibrated(self, guess: float, kind: int = 0) -> float:
        """The probability that the record of a class makes of a guess."""
        return float(self._library.mira_bets_calibrated(self.address, kind, guess))


@dataclass(frozen=True, slots=True)
class Link:
    """One link and the layers beside it.

    A layer computes for `compute` seconds, `routed` of that before its experts are known; a missing
    expert takes `transfer`. Bets are placed up to `horizon` layers ahead, on the likeliest experts
    whose share of all guesses is `confidence`.
    """

    transfer: float
    compute: float
    routed: float = 0.4
    confidence: float = 0.8
    horizon: int = 1


@dataclass(frozen=True, slots=True)
class Course:
    """What became of a recording on a link: totals of seconds and of events.

    `moved` and `wasted_seconds` are the link's. A late bet was under way when it was needed and is
    no hit; `demands` are the misses that nobody had bet on.
    """

    seconds: float
    stall: float
    moved: float
    wasted_seconds: float
    issued: int
    used: int
    late: int
    wasted: int
    cancelled: int
    demands: int


def run_timeline(
    routing: Routing,
    outcome: Outcome,
    guesses: Floats,
    link: Link,
    bets: Bets,
) -> Course:
    """Play a replayed recording on a link. guesses [horizon, tokens, layers, experts].

    Raises ValueError for what does not belong together.
    """
    shape = (routing.tokens, routing.layers, routing.experts)
    if guesses.shape[1:] != shape or len(guesses) < link.horizon or guesses.dtype != np.float32:
        raise ValueError(f"Got guesses {guesses.dtype} {guesses.shape} for {shape}")
    if outcome.resident is None or (bets.state.layers, bets.state.experts) != shape[1:]:
        raise ValueError("Got an outcome without residents or bets of another model")
    if link.horizon > bets.state.classes or not (link.transfer > 0 and link.compute > 0):
        raise ValueError(f"Got {link} with {bets.state.classes} classes")
    times, events = np.zeros(4), np.zeros(len(_EVENTS), np.int64)
    recording = routing_struct(routing)
    layout = _Link(link.transfer, link.compute, link.routed, link.confidence, link.horizon)
    status = library().mira_timeline(
        *(ctypes.addressof(recording), outcome.hits.ctypes.data, outcome.resident.ctypes.data),
        *(np.ascontiguousarray(guesses).ctypes.data, ctypes.addressof(layout), bets.address),
        *(times.ctypes.data, events.ctypes.data),
    )
    if status:
        raise MemoryError("no memory to replay in")
    seconds, stall, moved, wasted = times.tolist()
    return Course(seconds, stall, moved, wasted, *events.tolist())
