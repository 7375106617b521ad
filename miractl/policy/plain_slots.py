"""The slot table in Python: the reference of that in C, and what there is without the library.

`miractl/policy/slots.py` says what it is asked.
"""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from miractl.native.deciding import Known
from miractl.native.places import SlotPool
from miractl.native.residency import Pairs, Role, State, Status
from miractl.policy.brain import Brain
from miractl.policy.keys import ExpertKey
from miractl.policy.routing import NOWHERE, Addresses, Routed
from miractl.policy.staged import StagedResidency


class PlainSlots(StagedResidency):
    """The table in Python."""

    def __init__(self, pools: Sequence[SlotPool], staging_limit: int, policy: Brain) -> None:
        """Raises ValueError for an impossible division."""
        super().__init__(pools, staging_limit, policy)
        self.hits: npt.NDArray[np.int64] = np.zeros(policy.worth.shape, np.int64)
        self.misses: npt.NDArray[np.int64] = np.zeros_like(self.hits)
        self.here: Pairs = []
        self.arrived = self.different = 0
        self.called: list[int] = []
        self.placed: Pairs = []
        self._layer = 0
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

    def decide(
        self, step: Routed, known: Known, whole: bool = True, router: Addresses = NOWHERE
    ) -> int:
        """As the protocol says; nobody bets, and nothing can be copied."""
        assert router == NOWHERE
        self.record(step, known[0])
        return self.ask(step) if whole else Status.PLACED

    def ask(self, step: Routed) -> int:
        """As the protocol says."""
        layer, ids = step.layer, step.ids
        if ids.size and not 0 <= ids.min() <= ids.max() < self.hits.shape[1]:
            raise ValueError(f"Got ids up to {ids.max()} of {self.hits.shape[1]} experts")
        self._layer, self._waiting = layer, np.unique(ids).tolist()
        return self._look_up(count=1)

    def ask_again(self) -> int:
        """As the protocol says."""
        return self._look_up(count=0)

    def _look_up(self, count: int) -> int:
        keys = self.keys(self._layer, sorted(self._waiting))
        found = self.residents(keys)
        states = {
            key: State(self.progress.state[self._staged[key]])
            for key in keys
            if key in self._staged
        }
        self._needed, self._waiting, self.placed = frozenset(keys), [], []
        self.different = len(keys)
        self.here = [[key.expert, slot] for key, slot in found.items()]
        self._absent = [key.expert for key in keys if self.slot(key) is None]
        for key in keys:
            is_there = key in found or states.get(key) is State.DONE
            (self.hits if is_there else self.misses)[key] += count
        arrived = [key for key, state in states.items() if state is State.DONE]
        self.arrived = len(arrived)
        for key in arrived:
            self.here.append([key.expert, self.use(key, "used")])
        for key in (key for key, state in states.items() if state >= State.FAILED):
            self.drop(key)
            self._absent.append(key.expert)
        self.called = [key.expert for key in keys if key in self._staged]
        return Status.CALLED if self.called else self.place()

    def place(self, skip: bool = False) -> int:
        """As the protocol says."""
        while self._absent:
            key = ExpertKey(self._layer, self._absent[0])
            if not skip and self.is_full(self._layer):
                self.drop_stale(self._layer)
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

    def call_in(self, expert: int) -> None:
        """As the protocol says."""
        self.use(ExpertKey(self._layer, expert), "late")

    def slot_of(self, key: ExpertKey) -> int | None:
        """As the protocol says."""
        return self.slot(key)

    def is_resident(self, key: ExpertKey) -> bool:
        """As the protocol says."""
        return self.has(key, Role.RESIDENT)

    def is_staged(self, key: ExpertKey) -> bool:
        """As the protocol says."""
        return self.has(key, Role.STAGED)

    def dismiss(self, experts: Collection[int]) -> None:
        """As the protocol says."""
        self._waiting = [expert for expert in self._waiting if expert not in experts]

    @property
    def passing(self) -> int:
        """As the protocol says."""
        return len(self._transit)

    def end_transit(self) -> None:
        """As the protocol says."""
        for key in reversed(list(self._transit)):
            self.release(key)
