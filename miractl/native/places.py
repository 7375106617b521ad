"""Which layers share slots: sets that cache their experts, and pools of slots of one size.

Needs no compiled library.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotPool:
    """Slots of one size and the layers that share them: the j-th caches in its set j mod N.

    `ways` [N] are the places of each set, for residents and bets; the other slots are the reserve.
    """

    layers: tuple[int, ...]
    slots: int
    ways: tuple[int, ...]

    @property
    def reserve(self) -> int:
        """Slots for whoever only passes through."""
        return self.slots - sum(self.ways)


class Places:
    """Where layers belong: set and pool of each, [layers].

    `members` are the layers of each set, `sets` the sets of each pool that have any.
    """

    def __init__(self, pools: Sequence[SlotPool], layers: int, staging_limit: int) -> None:
        """Raises ValueError for an impossible division."""
        for pool in pools:
            if pool.reserve < 0:
                residents = sum(pool.ways)
                raise ValueError(
                    f"Got slots = {pool.slots} but expected at least the {residents} residents"
                )
        if sorted(layer for pool in pools for layer in pool.layers) != list(range(layers)):
            raise ValueError(f"Got {pools} but expected each of {layers} layers once")
        most = sum(sum(pool.ways) for pool in pools if pool.reserve)
        if not 0 <= staging_limit <= most:
            raise ValueError(f"Got {staging_limit = } but expected 0 to {most}")
        self.set, self.pool = [0] * layers, [0] * layers
        self.members: list[list[int]] = []
        self.sets: list[list[int]] = []
        for number, pool in enumerate(pools):
            sets = [list(pool.layers[at :: len(pool.ways)]) for at in range(len(pool.ways))]
            start = len(self.members)
            self.sets.append([start + at for at, own in enumerate(sets) if own])
            for own in sets:
                for layer in own:
                    self.set[layer], self.pool[layer] = len(self.members), number
                self.members.append(own)

    def share(self, one: int, other: int) -> bool:
        """Whether two layers have their places in one set."""
        return self.set[one] == self.set[other]


KEPT = 2  # ways that a set keeps, if it had so many
WIDTH = 4


def width_for(ways: Sequence[int]) -> int:
    """How many experts on either side of a set's border tell what another way is worth."""
    return min(WIDTH, max(1, sum(ways) // (2 * len(ways))))
