"""What the routers decided in one layer of one step, as the brain is told of it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]  # [tokens, k], distinct within a token
Scores = npt.NDArray[np.float32]  # [tokens, k]
Addresses = tuple[int, int]  # of ids as int64 and scores as float32 without gaps
NOWHERE: Addresses = (0, 0)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one sequence in a step: a prompt or a part of it, or one new token.

    `sequence` names it for as long as it lives; `position` is that of its first token in the text,
    0 where the sequence begins.
    """

    sequence: int
    start: int  # rows [start, stop) of the step
    stop: int
    position: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(slots=True, eq=False)
class Routed:
    """One layer's routing of a step. Layers of a step come in order, from 0.

    Made for every layer of every token, so it is not frozen: that costs a microsecond.
    """

    layer: int
    ids: Ids
    scores: Scores
    segments: tuple[Segment, ...]  # in order, together all rows
    step: int  # counts up, the same in all layers
    at: Addresses | None = None  # as `addresses`, where they are known: numpy is slow to tell

    @property
    def addresses(self) -> Addresses:
        """For the library."""
        if self.at is None:
            self.ids = np.ascontiguousarray(self.ids, np.int64)
            self.scores = np.ascontiguousarray(self.scores, np.float32)
            self.at = self.ids.ctypes.data, self.scores.ctypes.data
        return self.at

    def parts(self, limit: int) -> Iterator[tuple[slice, "Routed"]]:
        """So many tokens at a time, with the rows that they are: a long step is computed so."""
        if len(self.ids) <= limit:
            yield slice(None), self
            return
        for at in range(0, len(self.ids), limit):
            rows = slice(at, at + limit)
            ids, scores = self.ids[rows], self.scores[rows]
            yield rows, Routed(self.layer, ids, scores, self.segments, self.step)


class OneToken:
    """The routing of one token, layer by layer, which the next token's takes the place of.

    Ids and scores are written where `addresses` say; segments and step come with each token.
    """

    def __init__(self, layers: int, top: int) -> None:
        ids = np.zeros((layers, 1, top), np.int64)
        scores = np.zeros(ids.shape, np.float32)
        self.top = top
        self.steps = [
            Routed(layer, ids[layer], scores[layer], (), -1, (a.ctypes.data, b.ctypes.data))
            for layer, (a, b) in enumerate(zip(ids, scores, strict=True))
        ]
