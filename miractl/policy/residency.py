"""Which expert is in which slot.

Slots are numbered 0 to n-1 and are all alike; what differs is the role that an expert plays in one:

- resident: cached. A set of the set-associative cache holds at most `ways` residents; layer l
  belongs to set l mod N. One set a layer and one set for all are the two limits.
- staged: brought ahead of need, on a bet. At most `staging_limit`.
- transit: needed by the step under way but not worth a resident's place.

Invariants: residents <= sum of ways; staged + transit <= slots - sum of ways, the reserve; an
expert has at most one slot and a slot at most one expert; whoever the step needs is never evicted.
A reserve of 0 is for the cache that holds every expert; any other needs 1, or a step could starve.
A promotion from staged to resident moves no bytes: the slot changes its role, not its contents.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from miractl.policy.eviction import EvictionPolicy
from miractl.policy.keys import ExpertKey


class Role(Enum):
    """What an occupied slot is for."""

    RESIDENT = "resident"
    STAGED = "staged"
    TRANSIT = "transit"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an expert was put and who had to go for it."""

    slot: int
    role: Role
    evicted: ExpertKey | None = None


class _Room(NamedTuple):
    """Whether a newcomer may become resident, and who was evicted for it."""

    granted: bool
    evicted: ExpertKey | None = None


class Residency:
    """The slot table. Pure bookkeeping: moves no bytes, knows no threads."""

    def __init__(
        self, slots: int, ways: Sequence[int], staging_limit: int, policy: EvictionPolicy
    ) -> None:
        reserve = slots - sum(ways)
        if reserve < 0:
            raise ValueError(f"Got {slots = } but expected at least the {sum(ways)} residents")
        if staging_limit and not 0 < staging_limit < reserve:
            raise ValueError(f"Got {staging_limit = } but expected 0 to {max(0, reserve - 1)}")
        self.slots, self.ways, self.staging_limit = slots, tuple(ways), staging_limit
        self.policy = policy
        self._reserve = reserve
        self._free = list(range(slots - 1, -1, -1))
        self._slot: dict[ExpertKey, int] = {}
        self._present: dict[int, set[int]] = defaultdict(set)  # experts with a slot, by layer
        self._members: dict[Role, set[ExpertKey]] = {role: set() for role in Role}
        self._sets: list[set[ExpertKey]] = [set() for _ in ways]  # residents by set

    def __len__(self) -> int:
        return len(self._slot)

    def slot(self, key: ExpertKey) -> int | None:
        """The slot that holds this expert in any role."""
        return self._slot.get(key)

    def has(self, key: ExpertKey, role: Role) -> bool:
        """Whether the expert has a slot in this role."""
        return key in self._members[role]

    def present(self, layer: int, experts: int) -> npt.NDArray[np.uint8]:
        """1 for the experts of a layer that have a slot in any role, [experts]."""
        flags = np.zeros(experts, np.uint8)
        flags[list(self._present[layer])] = 1
        return flags

    def members(self, role: Role) -> frozenset[ExpertKey]:
        """All experts of one role."""
        return frozenset(self._members[role])

    def demand(self, key: ExpertKey, needed: Collection[ExpertKey]) -> Place | None:
        """A slot for an absent expert that the step needs; None if it has to wait for a wave.

        `needed` are the experts of the step that may not be evicted.
        """
        room = self._make_room(key, needed)
        if room.granted:
            return self._place(key, Role.RESIDENT, room.evicted)
        if self._spare() > 0:
            return self._place(key, Role.TRANSIT)
        return None

    def stage(self, key: ExpertKey) -> Place | None:
        """A slot for a bet, or None: one spare slot always stays for a demand."""
        if len(self._members[Role.STAGED]) >= self.staging_limit or self._spare() <= 1:
            return None
        return self._place(key, Role.STAGED)

    def adopt(self, key: ExpertKey, needed: Collection[ExpertKey]) -> Place:
        """A staged expert is needed now: make it resident if it is worth it, else transit."""
        room = self._make_room(key, needed)
        role = Role.RESIDENT if room.granted else Role.TRANSIT
        self._members[Role.STAGED].discard(key)
        self._enter(key, role)
        return Place(self._slot[key], role, room.evicted)

    def release(self, key: ExpertKey) -> None:
        """Free the slot of an expert, whatever its role."""
        self._free.append(self._slot.pop(key))
        self._present[key.layer].discard(key.expert)
        for members in self._members.values():
            members.discard(key)
        self._set_of(key).discard(key)

    def _set_of(self, key: ExpertKey) -> set[ExpertKey]:
        return self._sets[key.layer % len(self._sets)]

    def _spare(self) -> int:
        """Free slots of the reserve: the room of absent residents is not lent to bets."""
        return self._reserve - len(self._members[Role.STAGED]) - len(self._members[Role.TRANSIT])

    def _make_room(self, key: ExpertKey, needed: Collection[ExpertKey]) -> _Room:
        members = self._set_of(key)
        if len(members) < self.ways[key.layer % len(self._sets)]:
            return _Room(True)
        candidates = sorted(member for member in members if member not in needed)
        if not candidates:
            return _Room(False)
        victim = self.policy.victim(candidates)
        if not self.policy.admits(key, victim):
            return _Room(False)
        self.release(victim)
        return _Room(True, victim)

    def _place(self, key: ExpertKey, role: Role, evicted: ExpertKey | None = None) -> Place:
        slot = self._free.pop()
        self._slot[key] = slot
        self._present[key.layer].add(key.expert)
        self._enter(key, role)
        return Place(slot, role, evicted)

    def _enter(self, key: ExpertKey, role: Role) -> None:
        self._members[role].add(key)
        if role is Role.RESIDENT:
            self._set_of(key).add(key)
