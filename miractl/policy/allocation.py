"""How many ways each set of a cache has, moved to where they are worth most while it runs.

Layers differ in how many experts they keep asking for. A resident that is used although hardly
anybody is worth less would have been missed with fewer ways: a loss. An absent expert that is used
although hardly anybody absent is worth more would have been there with more: a gain. Both are
counted for each set, over the few experts next to the border on either side, and fade. Now and
then the set that gains most gets a slot from the one that loses least, if it gains clearly more.
One move at a time, between steps, when nobody is in use: nothing waits for it.

Invariants: the sum of ways never changes; a set keeps `least` of them and has no more than `most`.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from miractl.native.places import KEPT, width_for

EVERY = 32  # steps from one comparison to the next
FADE = 0.99983  # a step: half is forgotten in 4,096
MARGIN = 1.3
NOISE = 1.5  # standard deviations of a count

Floats = npt.NDArray[np.float64]


class Allocation:
    """Ways of every set. miractl/native/src/shares.c makes the same decisions."""

    def __init__(self, ways: Sequence[int], most: Sequence[int]) -> None:
        """`most`: experts that each set could hold."""
        self.ways, self.most = list(ways), tuple(most)
        self.least = [min(KEPT, own) for own in ways]
        self.gain, self.loss = np.zeros(len(ways)), np.zeros(len(ways))
        self._steps, self._width = 0, width_for(ways)

    def begin(self) -> bool:
        """A step begins; whether it is time to compare sets."""
        self.gain *= FADE
        self.loss *= FADE
        self._steps += 1
        return self._steps % EVERY == 0

    def move(self, sets: Collection[int], held: Sequence[int], bets: Sequence[int]) -> int | None:
        """Move a way between sets of one pool if it pays; the set that has one less.

        `held`: ways of each set that somebody has; those that `bets` have are not given up.
        """
        takers = [at for at in sets if self.ways[at] <= min(held[at], self.most[at] - 1)]
        taker = max(takers, key=lambda at: self.gain[at], default=None)
        givers = [
            at for at in sets if at != taker and self.ways[at] > max(self.least[at], bets[at])
        ]
        giver = min(givers, key=lambda at: self.loss[at], default=None)
        if taker is None or giver is None:
            return None
        gain, loss = float(self.gain[taker]), float(self.loss[giver])
        if not gain > loss * MARGIN + NOISE * math.sqrt(gain + loss):
            return None
        self.ways[giver] -= 1
        self.ways[taker] += 1
        return giver

    def count(
        self,
        at: int,
        held: int,
        worth: Floats,
        resident: npt.NDArray[np.bool_],
        row: int,
        expert: int,
    ) -> None:
        """An expert of a set is used; worth and residents are those before, [layers, experts].

        `held`: ways of the set that somebody has. The layers are those of the set, of which the
        expert's is `row`.
        """
        there, own = bool(resident[row, expert]), worth[row, expert]
        beside = worth[resident == there]
        order = np.flatnonzero(resident.reshape(-1) == there)
        first = order < row * worth.shape[1] + expert
        nearer = (beside < own if there else beside > own) | ((beside == own) & first)
        between = int(np.count_nonzero(nearer))
        idle = self.ways[at] - held  # nearer than any resident
        if there:
            self.loss[at] += between + max(0, idle) < self._width
        else:
            self.gain[at] += idle <= 0 and between < self._width
