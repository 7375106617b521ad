"""The slot table as a step asks it: in C, or in Python where there is no library.

A step of a layer goes: `record` its routing; `ask` for its experts; `call_in` those that were bet
on, or let them `fail`, then `place`; `end_transit` when they are computed, and `ask_again` while
somebody waits.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from miractl.native.library import available
from miractl.native.residency import ResidencyTable, Role, SlotPool, Status
from miractl.policy.eviction import Brain
from miractl.policy.keys import ExpertKey
from miractl.policy.residency import Residency
from miractl.policy.routing import Routed

Pairs = list[list[int]]  # of expert and slot


class SlotTable(Protocol):
    """Which expert is in which slot. Not thread-safe: its owner holds the lock."""

    policy: Brain
    pools: tuple[SlotPool, ...]
    staging_limit: int
    hits: npt.NDArray[np.int64]  # [layers, experts]: looked up and resident
    misses: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Occupied slots."""

    @property
    def ways(self) -> tuple[int, ...]:
        """Residents that each set may have now; between sets of a pool they may shift."""

    @property
    def free(self) -> tuple[int, ...]:
        """Slots of each pool that nobody has."""

    @property
    def evictions(self) -> int:
        """Residents that had to go, in all."""

    @property
    def bypassed(self) -> int:
        """Experts that a step needed and that did not become resident, in all."""

    @property
    def here(self) -> Pairs:
        """Experts of the step that were resident, with their slots."""

    @property
    def called(self) -> list[int]:
        """Experts of the step that are staged, not counted yet: to be called in, or to fail."""

    @property
    def placed(self) -> Pairs:
        """Absent experts of the step that got a slot, with it."""

    @property
    def waiting(self) -> list[int]:
        """Experts of the step that have to wait for the next wave."""

    @property
    def waits(self) -> bool:
        """Whether there are any."""

    def record(self, step: Routed) -> None:
        """Tell the policy of a layer's routing, before its experts are looked up."""

    def ask(self, step: Routed) -> int:
        """A step needs its experts: look them up, count them, and `place` unless bets come first.

        The Status. Raises ValueError for experts that do not exist.
        """

    def ask_again(self) -> int:
        """The same for those that wait, uncounted."""

    def place(self, skip: bool = False) -> int:
        """Bring the absent in; `skip`: whoever came short waits. The Status."""

    def call_in(self, expert: int) -> int:
        """A staged expert of the step is needed: its slot."""

    def fail(self, expert: int) -> None:
        """A staged expert of the step is no good: it is absent, after the others."""

    def bet(self, key: ExpertKey) -> int | None:
        """A slot for a bet on an absent expert, or None: one spare slot stays for a demand."""

    def release(self, key: ExpertKey) -> None:
        """Free the slot of an expert, whatever its role."""

    def end_transit(self) -> None:
        """Free the slots of all who are in transit."""

    def slot_of(self, key: ExpertKey) -> int | None:
        """The slot of an expert in any role."""

    def is_resident(self, key: ExpertKey) -> bool:
        """Whether it has come to stay."""

    def dismiss(self, experts: Collection[int]) -> None:
        """Those of the step that wait need no slot: they are computed elsewhere."""

    def present(self, layer: int) -> npt.NDArray[np.uint8]:
        """Not 0 for the experts of a layer that have a slot, [experts]; not to be written to."""

    def members(self, role: Role) -> frozenset[ExpertKey]:
        """All experts of one role."""


class CompiledSlots(ResidencyTable):
    """The table in C."""

    def __init__(self, pools: Sequence[SlotPool], staging_limit: int, policy: Brain) -> None:
        """Raises ValueError for an impossible division, MiractlError without the library."""
        super().__init__(pools, staging_limit, policy.worth, policy.admission)
        self.policy = policy

    def record(self, step: Routed) -> None:
        """As the protocol says."""
        if self.policy.shifts:
            ids, _ = step.addresses
            self._share(self._address, step.layer, ids, step.ids.size)
        if self.policy.record(step):
            self._changed.fill(1)
        else:
            self._changed[step.layer] = 1

    def ask(self, step: Routed) -> int:
        """As the protocol says."""
        ids, _ = step.addresses
        status: int = self._ask(self._address, step.layer, ids, step.ids.size)
        if status < 0:
            raise ValueError(f"Got ids up to {step.ids.max()} of {self.hits.shape[1]} experts")
        return status

    def slot_of(self, key: ExpertKey) -> int | None:
        """As the protocol says."""
        return int(self._slot[key]) if self._role[key] else None

    def is_resident(self, key: ExpertKey) -> bool:
        """As the protocol says."""
        return bool(self._role[key] == Role.RESIDENT)

    def members(self, role: Role) -> frozenset[ExpertKey]:
        """As the protocol says."""
        return frozenset(ExpertKey(*key) for key in np.argwhere(self._role == role).tolist())


class PlainSlots(Residency):
    """The table in Python: the reference."""

    def __init__(self, pools: Sequence[SlotPool], staging_limit: int, policy: Brain) -> None:
        """Raises ValueError for an impossible division."""
        super().__init__(pools, staging_limit, policy)
        self.hits: npt.NDArray[np.int64] = np.zeros(policy.worth.shape, np.int64)
        self.misses: npt.NDArray[np.int64] = np.zeros_like(self.hits)
        self.evictions = self.bypassed = 0
        self.here: Pairs = []
        self.called: list[int] = []
        self.placed: Pairs = []
        self._layer, self._needed = 0, frozenset[ExpertKey]()
        self._absent: list[int] = []  # not placed yet, in order
        self._waiting: list[int] = []

    @property
    def waiting(self) -> list[int]:
        """As the protocol says."""
        return list(self._waiting)

    @property
    def waits(self) -> bool:
        """As the protocol says."""
        return bool(self._waiting)

    def shrink(self, index: int) -> ExpertKey:
        """The least worthy of a set that has lost a way goes."""
        self.evictions += 1
        return super().shrink(index)

    def ask(self, step: Routed) -> int:
        """As the protocol says."""
        layer, ids = step.layer, step.ids
        if ids.size and not 0 <= ids.min() <= ids.max() < self.hits.shape[1]:
            raise ValueError(f"Got ids up to {ids.max()} of {self.hits.shape[1]} experts")
        self._layer, self._waiting = layer, np.unique(ids).tolist()
        status = self._look_up()
        for expert, _ in self.here:
            self.hits[layer, expert] += 1
        for expert in self._absent:
            self.misses[layer, expert] += 1
        return status or self.place()

    def ask_again(self) -> int:
        """As the protocol says."""
        return self._look_up() or self.place()

    def _look_up(self) -> int:
        keys = self.keys(self._layer, sorted(self._waiting))
        found = self.residents(keys)
        self._needed, self._waiting = frozenset(keys), []
        self.here = [[key.expert, slot] for key, slot in found.items()]
        self.called = [key.expert for key in keys if self.has(key, Role.STAGED)]
        self._absent = [key.expert for key in keys if self.slot(key) is None]
        self.placed = []
        return Status.CALLED if self.called else Status.PLACED

    def place(self, skip: bool = False) -> int:
        """As the protocol says."""
        while self._absent:
            key = ExpertKey(self._layer, self._absent[0])
            place = None if skip else self.demand(key, self._needed)
            if place is None and not skip and self.has_bets(self._layer):
                return Status.SHORT
            skip = False
            self._absent.pop(0)
            if place is None:
                self._waiting.append(key.expert)
                continue
            self.evictions += place.evicted is not None
            self.bypassed += place.role is Role.TRANSIT
            self.placed.append([key.expert, place.slot])
        return Status.PLACED

    def call_in(self, expert: int) -> int:
        """As the protocol says."""
        place = self.adopt(ExpertKey(self._layer, expert), self._needed)
        self.evictions += place.evicted is not None
        self.bypassed += place.role is Role.TRANSIT
        return place.slot

    def fail(self, expert: int) -> None:
        """As the protocol says."""
        self.release(ExpertKey(self._layer, expert))
        self._absent.append(expert)

    def slot_of(self, key: ExpertKey) -> int | None:
        """As the protocol says."""
        return self.slot(key)

    def is_resident(self, key: ExpertKey) -> bool:
        """As the protocol says."""
        return self.has(key, Role.RESIDENT)

    def dismiss(self, experts: Collection[int]) -> None:
        """As the protocol says."""
        self._waiting = [expert for expert in self._waiting if expert not in experts]

    def bet(self, key: ExpertKey) -> int | None:
        """As the protocol says."""
        place = self.stage(key)
        return None if place is None else place.slot

    def end_transit(self) -> None:
        """As the protocol says."""
        for key in reversed(list(self._transit)):
            self.release(key)


def one_pool(slots: int, ways: Sequence[int], policy: Brain) -> tuple[SlotPool]:
    """All layers share the slots."""
    return (SlotPool(tuple(range(len(policy.worth))), slots, tuple(ways)),)


def make_slots(slots: int, ways: Sequence[int], staging_limit: int, policy: Brain) -> SlotTable:
    """The table of slots that all layers share. Raises ValueError for an impossible division."""
    return make_table(one_pool(slots, ways, policy), staging_limit, policy)


def make_table(pools: Sequence[SlotPool], staging_limit: int, policy: Brain) -> SlotTable:
    """The table in C where there is one. Raises ValueError for an impossible division."""
    kind = CompiledSlots if available() else PlainSlots
    return kind(pools, staging_limit, policy)
