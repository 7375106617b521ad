"""Expert caches replayed over recorded routing, in C.

Shapes and ranges are checked before the library sees them; what is wrong is a ValueError.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from miractl.native.learner import Learner
from miractl.native.library import library

MOST_EXPERTS = 1 << 16


class Admission(IntEnum):
    """How a newcomer gets into a full cache."""

    ALWAYS = 0  # the least worthy goes, of those that the step can do without
    WORTHIER = 1  # only if worth as much as the least worthy, who may be in use
    HOTTER = 2  # as ALWAYS, but nobody below the threshold displaces anybody above it


class Kind(IntEnum):
    """What an expert is worth."""

    LRU = 0  # when it was used last
    LFU = 1  # how often it was used, fading by `decay` a token
    RANDOM = 2  # a number drawn anew in every step; no rule for a pool
    BELADY = 3  # how soon it will be used again
    HEAT = 4  # the heat score below the threshold, then as LRU; with HOTTER
    LEARNED = 5  # how soon it will be used again, as a learner expects


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache of ways[l] experts for each layer, or one of ways[0] experts for all.

    `shifts`: ways move between the layers' caches to where they are worth most.
    """

    ways: tuple[int, ...]
    pooled: bool = False
    admission: Admission = Admission.ALWAYS
    shifts: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """What an expert is worth, and the constants of the kinds that have some."""

    kind: Kind
    seed: int = 0
    decay: float = 0.95  # LFU: a token; HEAT: 100 ms
    token_seconds: float = 0.05  # HEAT, as are the next two
    threshold: float = 0.30
    window_seconds: float = 0.5
    learner: Learner | None = None  # LEARNED: learns as the replay goes


class Routing:
    """Routing of consecutive tokens as the library wants it: contiguous, checked once.

    ids [tokens, layers, top], probabilities of that shape (None: all alike), starts [tokens]:
    whether a text begins there (None: the first token alone).
    """

    def __init__(
        self,
        ids: NDArray[Any],
        experts: int,
        probabilities: NDArray[Any] | None = None,
        starts: NDArray[Any] | None = None,
        *,
        distinct: bool = True,
    ) -> None:
        """Raises ValueError for experts that do not exist or, unless told otherwise, come twice."""
        if ids.ndim != 3 or ids.dtype.kind not in "iu" or not ids.size:
            raise ValueError(f"Got ids {ids.dtype} {ids.shape} but expected [tokens, layers, top]")
        if not 0 < experts <= MOST_EXPERTS or ids.min() < 0 or ids.max() >= experts:
            raise ValueError(f"Got ids {ids.min()} to {ids.max()} of {experts} experts")
        ordered = np.sort(ids, axis=2)
        if distinct and (ordered[:, :, 1:] == ordered[:, :, :-1]).any():
            raise ValueError("Got an expert twice in one token and layer")
        self.tokens, self.layers, self.top = ids.shape
        self.experts = experts
        self.ids = np.ascontiguousarray(ids, dtype=np.uint16)
        if probabilities is None:
            probabilities = np.full(ids.shape, 1 / self.top)
        if starts is None:
            starts = np.arange(self.tokens) == 0
        if probabilities.shape != ids.shape or starts.shape != (self.tokens,):
            raise ValueError(f"Got probabilities {probabilities.shape}, starts {starts.shape}")
        self.probabilities = np.ascontiguousarray(probabilities, dtype=np.float32)
        self.starts = np.ascontiguousarray(starts, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Outcome:
    """hits [tokens, layers, top]: 1 where the expert was there; entered [layers]: came to stay.

    resident [tokens, layers, experts], if asked for: 1 for who was there before the token.
    """

    hits: NDArray[np.uint8]
    entered: NDArray[np.int64]
    resident: NDArray[np.uint8] | None = None


class _Routing(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("tokens", "layers", "experts", "top")),
        *((name, ctypes.c_void_p) for name in ("ids", "probabilities", "starts")),
    ]


class _Cache(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("pooled", "admission", "shifts")),
        ("ways", ctypes.c_void_p),
    ]


class _Rule(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("seed", ctypes.c_uint32),
        *((name, ctypes.c_double) for name in ("decay", "token_seconds", "threshold", "window")),
        ("learner", ctypes.c_void_p),
    ]


def check(routing: Routing, cache: Cache) -> None:
    """Raise ValueError for a cache that does not belong to the routing."""
    wanted = 1 if cache.pooled else routing.layers
    if len(cache.ways) != wanted or min(cache.ways) < 0:
        raise ValueError(f"Got ways {cache.ways} but expected {wanted} numbers from 0")


def replay(routing: Routing, cache: Cache, rule: Rule, residents: bool = False) -> Outcome:
    """Replay from a cold cache; with `residents`, note who was there.

    Raises ValueError for a cache of other layers or a rule that does not suit it, MiractlError
    without the library.
    """
    check(routing, cache)
    if rule.kind is Kind.RANDOM and cache.pooled:
        raise ValueError("Got a pool for random eviction but expected one cache a layer")
    if (rule.kind is Kind.LEARNED) != (rule.learner is not None):
        raise ValueError(f"Got a learner for {rule.kind.name} or none for LEARNED")
    if rule.learner is not None:
        check_sizes("learner", rule.learner.state, routing)
    if (rule.kind is Kind.HEAT) != (cache.admission is Admission.HOTTER):
        raise ValueError(f"Got admission {cache.admission.name} for {rule.kind.name}")
    outcome = _outcome(routing, residents)
    ways = _ways(cache.ways)
    arguments = (
        routing_struct(routing),
        _Cache(cache.pooled, cache.admission, cache.shifts, ways.ctypes.data),
        _Rule(
            *(rule.kind, rule.seed, rule.decay, rule.token_seconds),
            *(rule.threshold, rule.window_seconds, rule.learner and rule.learner.address),
        ),
    )
    status = library().mira_replay(
        *map(ctypes.addressof, arguments),
        *(outcome.hits.ctypes.data, outcome.entered.ctypes.data),
        None if outcome.resident is None else outcome.resident.ctypes.data,
    )
    if status:
        raise MemoryError("no memory to replay in")
    return outcome


class Sizes(Protocol):
    """What a learner or a predictor is made for."""

    layers: int
    experts: int
    top: int


def check_sizes(what: str, state: Sizes, routing: Routing) -> None:
    """Raise ValueError for a learner or predictor of another model than the routing's."""
    sizes = (state.layers, state.experts, state.top)
    if sizes != (routing.layers, routing.experts, routing.top):
        raise ValueError(f"Got a {what} of {sizes} layers, experts and k")


def _outcome(routing: Routing, residents: bool) -> Outcome:
    cells = (routing.tokens, routing.layers, routing.experts)
    return Outcome(
        *(np.zeros(routing.ids.shape, np.uint8), np.zeros(routing.layers, np.int64)),
        np.zeros(cells, np.uint8) if residents else None,
    )


def _ways(ways: Sequence[int]) -> NDArray[np.int32]:
    return np.array(ways, dtype=np.int32)


def routing_struct(routing: Routing) -> ctypes.Structure:
    """The routing as the library takes it; valid as long as `routing` lives."""
    return _Routing(
        *(routing.tokens, routing.layers, routing.experts, routing.top),
        *(routing.ids.ctypes.data, routing.probabilities.ctypes.data, routing.starts.ctypes.data),
    )
