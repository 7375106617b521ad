"""Which expert is in which slot.

Slots are numbered 0 to n-1 and are all alike; what differs is the role that an expert plays in one:

- resident: cached. A set of the set-associative cache holds at most `ways` residents; layer l
  belongs to set l mod N. One set a layer and one set for all are the two limits.
- staged: brought ahead of need, on a bet. At most `staging_limit`.
- transit: needed by the step under way but not worth a resident's place, any more or at all.

Invariants: residents <= sum of ways; staged + transit <= slots - sum of ways, the reserve; an
expert has at most one slot and a slot at most one expert; whoever the step needs keeps its slot
until the step lets go of it.
A reserve of 0 is for the cache that holds every expert; any other needs 1, or a step could starve.
A change of role moves no bytes. A policy by which newcomers compete with everybody may find that
somebody is worth less whom the step needs: he gives up his place and keeps his slot, in transit.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from miractl.native.replay import Admission
from miractl.policy.eviction import HOT, Brain
from miractl.policy.keys import ExpertKey
from miractl.policy.routing import Routed


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
    """Whether a newcomer may become resident, and who has to go for it."""

    granted: bool
    evicted: ExpertKey | None = None


class Residency:
    """The slot table. Pure bookkeeping: moves no bytes, knows no threads."""

    def __init__(self, slots: int, ways: Sequence[int], staging_limit: int, policy: Brain) -> None:
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
        self._members: dict[str, set[ExpertKey]] = {role.value: set() for role in Role}
        layers, _ = policy.worth.shape
        self._layers = [np.arange(at, layers, len(ways)) for at in range(len(ways))]  # of each set
        self._held = [0] * len(ways)
        self._resident = np.zeros(policy.worth.shape, bool)
        # The least worthy resident of each layer: where somebody has to go, only these are looked
        # at. Infinite where there is none.
        self._least = np.full(layers, np.inf)
        self._loser = np.zeros(layers, np.intp)

    def __len__(self) -> int:
        return len(self._slot)

    def slot(self, key: ExpertKey) -> int | None:
        """The slot that holds this expert in any role."""
        return self._slot.get(key)

    def has(self, key: ExpertKey, role: Role) -> bool:
        """Whether the expert has a slot in this role."""
        return key in self._members[role.value]

    def members(self, role: Role) -> frozenset[ExpertKey]:
        """All experts of one role."""
        return frozenset(self._members[role.value])

    def record(self, step: Routed) -> None:
        """Tell the policy of a layer's routing, before its experts are looked up."""
        if self.policy.record(step):
            self._rank_all()
        else:
            self._rank(step.layer)

    def demand(self, key: ExpertKey, needed: Collection[ExpertKey]) -> Place | None:
        """A slot for an absent expert that the step needs; None if it has to wait for a wave.

        `needed` are the experts of the step, all of the layer of `key`, that keep their slots.
        """
        room = self._room(key, needed)
        if self._spare() <= 0 and (not room.granted or room.evicted in needed):
            return None
        if not room.granted:
            return self._place(key, Role.TRANSIT)
        self._evict(room.evicted, needed)
        return self._place(key, Role.RESIDENT, room.evicted)

    def stage(self, key: ExpertKey) -> Place | None:
        """A slot for a bet, or None: one spare slot always stays for a demand."""
        staged = len(self._members[Role.STAGED.value])
        if staged >= self.staging_limit or self._spare() <= 1:
            return None
        return self._place(key, Role.STAGED)

    def adopt(self, key: ExpertKey, needed: Collection[ExpertKey]) -> Place:
        """A staged expert is needed now: make it resident if it is worth it, else transit."""
        room = self._room(key, needed)
        role = Role.RESIDENT if room.granted else Role.TRANSIT
        self._members[Role.STAGED.value].discard(key)
        self._evict(room.evicted, needed)
        self._enter(key, role)
        return Place(self._slot[key], role, room.evicted)

    def release(self, key: ExpertKey) -> None:
        """Free the slot of an expert, whatever its role."""
        self._free.append(self._slot.pop(key))
        if key in self._members[Role.RESIDENT.value]:
            self._leave(key)
        for members in self._members.values():
            members.discard(key)

    def _spare(self) -> int:
        """Free slots of the reserve: the room of absent residents is not lent to bets."""
        members = self._members
        return self._reserve - len(members[Role.STAGED.value]) - len(members[Role.TRANSIT.value])

    def _room(self, key: ExpertKey, needed: Collection[ExpertKey]) -> _Room:
        """Whether a newcomer may become resident, and who has to go for it."""
        index = key.layer % len(self.ways)
        if self._held[index] < self.ways[index]:
            return _Room(True)
        worth, victim = self._least_of(index, key.layer, needed)
        if victim is None or not self._admits(float(self.policy.worth[key]), worth):
            return _Room(False)
        return _Room(True, victim)

    def _least_of(
        self, index: int, layer: int, needed: Collection[ExpertKey]
    ) -> tuple[float, ExpertKey | None]:
        """The least worthy of a set who may go, the first of equals; None if nobody may."""
        layers, kept = self._layers[index], None
        if self.policy.admission is not Admission.WORTHIER:
            kept = self._least[layer], self._loser[layer]
            self._rank(layer, but=[other.expert for other in needed])
        found = layer if len(layers) == 1 else int(layers[self._least[layers].argmin()])
        worth, expert = float(self._least[found]), int(self._loser[found])
        if kept is not None:
            self._least[layer], self._loser[layer] = kept
        return worth, ExpertKey(found, expert) if worth < np.inf else None

    def _admits(self, newcomer: float, victim: float) -> bool:
        admission = self.policy.admission
        if admission is Admission.WORTHIER:
            return newcomer >= victim
        return admission is Admission.ALWAYS or newcomer >= HOT or victim < HOT

    def _rank(self, layer: int, but: Sequence[int] = ()) -> None:
        """Find the least worthy resident of a layer, who is none of `but`."""
        row = np.where(self._resident[layer], self.policy.worth[layer], np.inf)
        if but:
            row[but] = np.inf
        loser = row.argmin()
        self._least[layer], self._loser[layer] = row[loser], loser

    def _rank_all(self) -> None:
        standing = np.where(self._resident, self.policy.worth, np.inf)
        np.argmin(standing, axis=1, out=self._loser)
        self._least[:] = standing.min(axis=1)

    def _evict(self, victim: ExpertKey | None, needed: Collection[ExpertKey]) -> None:
        """Take a resident's place; its slot too, unless the step needs it."""
        if victim is None:
            return
        if victim not in needed:
            self.release(victim)
            return
        self._leave(victim)
        self._members[Role.RESIDENT.value].discard(victim)
        self._members[Role.TRANSIT.value].add(victim)

    def _place(self, key: ExpertKey, role: Role, evicted: ExpertKey | None = None) -> Place:
        slot = self._free.pop()
        self._slot[key] = slot
        self._enter(key, role)
        return Place(slot, role, evicted)

    def _enter(self, key: ExpertKey, role: Role) -> None:
        self._members[role.value].add(key)
        if role is Role.RESIDENT:
            self._held[key.layer % len(self.ways)] += 1
            self._resident[key] = True
            self._rank(key.layer)

    def _leave(self, key: ExpertKey) -> None:
        """A resident gives up its place."""
        self._held[key.layer % len(self.ways)] -= 1
        self._resident[key] = False
        self._rank(key.layer)
