"""Which expert is in which slot.

Slots are numbered through. Where layers have experts of different shapes there is a pool of slots
for each shape, and a layer has a slot of its own pool or none. Those of a pool are all alike; what
differs is the role that an expert plays in one:

- resident: cached. A set of the set-associative cache has `ways` places; the j-th layer of a pool
  belongs to its set j mod N. One set a layer and one for all are the two limits.
- staged: brought ahead of need, on a bet, into a place of its layer's set. At most `staging_limit`.
- transit: needed by the step under way but not worth a resident's place, any more or at all.

Nothing is kept for bets: where nobody bets, all places are residents'. A bet takes a place that is
free, that of a bet that ended in vain, or the least worthy resident's, which who is bet on would
have had anyway if the bet comes true: it becomes resident where it is. In vain, its place is the
first that is given up.

Invariants: residents and staged of a set <= its ways; in each pool, transit <= slots - sum of ways,
the reserve; an expert has at most one slot and a slot at most one expert; whoever the step needs
keeps its slot until the step lets go of it.
A reserve of 0 is for the cache that holds every expert; any other needs 1, or a step could starve.
A change of role moves no bytes. A policy by which newcomers compete with everybody may find that
somebody is worth less whom the step needs: he gives up his place and keeps his slot, in transit.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from miractl.native.places import Places, SlotPool
from miractl.native.replay import Admission
from miractl.native.residency import Role
from miractl.policy.allocation import Allocation
from miractl.policy.brain import Brain
from miractl.policy.eviction import HOT
from miractl.policy.keys import ExpertKey
from miractl.policy.routing import Routed
from miractl.policy.standing import Standing


class Place(NamedTuple):
    """Where an expert was put and who had to go for it."""

    slot: int
    role: Role
    evicted: ExpertKey | None = None


class _Room(NamedTuple):
    """Whether a newcomer may become resident, and who has to go for it."""

    granted: bool
    evicted: ExpertKey | None = None


GRANTED, REFUSED = _Room(True), _Room(False)


class Residency:
    """The slot table. Pure bookkeeping: moves no bytes, knows no threads."""

    def __init__(self, pools: Sequence[SlotPool], staging_limit: int, policy: Brain) -> None:
        self.places = Places(pools, len(policy.worth), staging_limit)
        self.pools, self.staging_limit = tuple(pools), staging_limit
        self.slots = sum(pool.slots for pool in pools)
        self.policy = policy
        self._spare = [pool.reserve for pool in pools]  # slots of each reserve without a transit
        numbers = iter(range(self.slots))
        self._idle = [[next(numbers) for _ in range(pool.slots)][::-1] for pool in pools]
        self._residents: dict[ExpertKey, int] = {}  # and their slots, as in the other two
        self._staged: dict[ExpertKey, int] = {}  # the oldest first
        self._transit: dict[ExpertKey, int] = {}
        self._standing = Standing(policy.worth, self.places.members)
        ways = [ways for pool in pools for ways in pool.ways]
        experts = policy.worth.shape[1]
        self._shares = Allocation(ways, [experts * len(own) for own in self.places.members])
        self._held = [0] * len(ways)  # places of each set that residents and staged have

    def __len__(self) -> int:
        return len(self._residents) + len(self._staged) + len(self._transit)

    @property
    def ways(self) -> tuple[int, ...]:
        """Places of each set now, for residents and bets."""
        return tuple(self._shares.ways)

    @property
    def free(self) -> tuple[int, ...]:
        """Slots of each pool that nobody has."""
        return tuple(map(len, self._idle))

    def has_bets(self, layer: int) -> bool:
        """Whether bets have places that experts of the layer could have."""
        return any(self.places.share(key.layer, layer) for key in self._staged)

    def slot(self, key: ExpertKey) -> int | None:
        """The slot that holds this expert in any role."""
        for members in (self._residents, self._staged, self._transit):
            if key in members:
                return members[key]
        return None

    def keys(self, layer: int, experts: Iterable[int]) -> list[ExpertKey]:
        """Names of experts of a layer, made once: a step needs many of them."""
        names = self._standing.keys[layer]
        return [names[expert] for expert in experts]

    def residents(self, keys: Iterable[ExpertKey]) -> dict[ExpertKey, int]:
        """Those of these experts that are resident, with their slots."""
        found = self._residents
        return {key: found[key] for key in keys if key in found}

    def has(self, key: ExpertKey, role: Role) -> bool:
        """Whether the expert has a slot in this role."""
        return key in self._of(role)

    def present(self, layer: int) -> npt.NDArray[np.uint8]:
        """1 for the experts of a layer that have a slot in any role, [experts]."""
        flags: npt.NDArray[np.uint8] = self._standing.resident[layer].astype(np.uint8)
        for key in (*self._staged, *self._transit):
            if key.layer == layer:
                flags[key.expert] = 1
        return flags

    def members(self, role: Role) -> frozenset[ExpertKey]:
        """All experts of one role."""
        return frozenset(self._of(role))

    def record(self, step: Routed, now: float | None = None) -> None:
        """Tell the policy of a layer's routing, before its experts are looked up.

        `now` on the heat's clock; None: as it says.
        """
        if self.policy.shifts:
            self._share(step)
        changed = self.policy.record(step, now)
        self._standing.renew(None if changed else step.layer)

    def _share(self, step: Routed) -> None:
        """Learn what other ways would have done; as a step begins, move them if it pays."""
        places, shares = self.places, self._shares
        if step.layer == 0 and shares.begin():
            for pool in range(len(self.pools)):
                own = [
                    at for at, of in enumerate(places.members) if of and places.pool[of[0]] == pool
                ]
                bets = [0] * len(self._held)
                for key in self._staged:
                    bets[places.set[key.layer]] += 1
                giver = shares.move(own, self._held, bets)
                if giver is not None and self._held[giver] > shares.ways[giver]:
                    self.shrink(giver)
        index = places.set[step.layer]
        layers = self._standing.layers[index]
        row = places.members[index].index(step.layer)
        for expert in np.unique(step.ids).tolist():
            worth, resident = self.policy.worth[layers], self._standing.resident[layers]
            shares.count(index, self._held[index], worth, resident, row, expert)

    def shrink(self, index: int) -> ExpertKey:
        """The least worthy of a set that has lost a way goes. Between steps: nobody is in use."""
        _, victim = self._standing.least_of(index, self.places.members[index][0])
        self.release(victim)
        return victim

    def demand(self, key: ExpertKey, needed: Collection[ExpertKey]) -> Place | None:
        """A slot for an absent expert that the step needs; None if it has to wait for a wave.

        `needed` are the experts of the step, all of the layer of `key`, that keep their slots.
        """
        room = self._room(key, needed)
        if self._spare[self.places.pool[key.layer]] <= 0 and (
            not room.granted or room.evicted in needed
        ):
            return None
        if not room.granted:
            return self._place(key, Role.TRANSIT)
        self._evict(room.evicted, needed)
        return self._place(key, Role.RESIDENT, room.evicted)

    def stage(self, key: ExpertKey, needed: Collection[ExpertKey]) -> Place | None:
        """A place for a bet, the least worthy resident's if none is free, or None.

        `needed` are the experts of the step under way, that keep their slots.
        """
        if len(self._staged) >= self.staging_limit:
            return None
        if not self.is_full(key.layer):
            return self._place(key, Role.STAGED)
        with self._standing.kept(needed):
            worth, victim = self._standing.least_of(self.places.set[key.layer], key.layer)
        if worth == np.inf:
            return None
        self.release(victim)
        return self._place(key, Role.STAGED, victim)

    def adopt(self, key: ExpertKey) -> int:
        """A staged expert is needed: it becomes resident, in the place that it has. Its slot."""
        slot = self._leave(key)
        self._enter(key, slot, Role.RESIDENT)
        return slot

    def is_full(self, layer: int) -> bool:
        """Whether somebody has every place of the layer's set."""
        index = self.places.set[layer]
        return self._held[index] >= self._shares.ways[index]

    def release(self, key: ExpertKey) -> None:
        """Free the slot of an expert, whatever its role."""
        self._idle[self.places.pool[key.layer]].append(self._leave(key))

    def _of(self, role: Role) -> dict[ExpertKey, int]:
        if role is Role.RESIDENT:
            return self._residents
        return self._staged if role is Role.STAGED else self._transit

    def _room(self, key: ExpertKey, needed: Collection[ExpertKey]) -> _Room:
        """Whether a newcomer may become resident, and who has to go for it."""
        layer, _ = key
        index = self.places.set[layer]
        if not self.is_full(layer):
            return GRANTED
        if self.policy.admission is Admission.WORTHIER:
            worth, victim = self._standing.least_of(index, layer)
        else:
            with self._standing.kept(needed):
                worth, victim = self._standing.least_of(index, layer)
        if worth == np.inf or not self._admits(self.policy.worth[key], worth):
            return REFUSED
        return _Room(True, victim)

    def _admits(self, newcomer: np.float64, victim: np.float64) -> bool:
        admission = self.policy.admission
        if admission is Admission.WORTHIER:
            return bool(newcomer >= victim)
        return admission is Admission.ALWAYS or bool(newcomer >= HOT or victim < HOT)

    def _evict(self, victim: ExpertKey | None, needed: Collection[ExpertKey]) -> None:
        """Take a resident's place; its slot too, unless the step needs it."""
        if victim is None:
            return
        if victim in needed:
            self._enter(victim, self._leave(victim), Role.TRANSIT)
        else:
            self.release(victim)

    def _place(self, key: ExpertKey, role: Role, evicted: ExpertKey | None = None) -> Place:
        slot = self._idle[self.places.pool[key.layer]].pop()
        self._enter(key, slot, role)
        return Place(slot, role, evicted)

    def _enter(self, key: ExpertKey, slot: int, role: Role) -> None:
        self._of(role)[key] = slot
        if role is Role.TRANSIT:
            self._spare[self.places.pool[key.layer]] -= 1
            return
        self._held[self.places.set[key.layer]] += 1
        if role is Role.RESIDENT:
            self._standing.enter(key)

    def _leave(self, key: ExpertKey) -> int:
        """An expert gives up its role; its slot."""
        if key in self._transit:
            self._spare[self.places.pool[key.layer]] += 1
            return self._transit.pop(key)
        self._held[self.places.set[key.layer]] -= 1
        if key in self._staged:
            return self._staged.pop(key)
        self._standing.leave(key)
        return self._residents.pop(key)
