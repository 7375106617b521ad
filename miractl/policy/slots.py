"""The slot table as a step asks it: in C, or in Python where there is no library.

A step of a layer goes: `decide` on it; `call_in` experts that were bet on and are on their way,
then `place`; `end_transit` when they are computed, and `ask_again` while somebody waits. What
`decide` does is to `record` its routing, to settle bets where there are any, and to `ask` for it.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from miractl.native.deciding import Known, tell
from miractl.native.library import available
from miractl.native.places import SlotPool
from miractl.native.residency import BetCounts, Pairs, ResidencyTable, Role
from miractl.native.residency_layout import Progress
from miractl.policy.brain import Brain
from miractl.policy.keys import ExpertKey
from miractl.policy.plain_slots import PlainSlots
from miractl.policy.routing import NOWHERE, Addresses, Routed


class SlotTable(Protocol):
    """Which expert is in which slot. Not thread-safe: its owner holds the lock."""

    policy: Brain
    pools: tuple[SlotPool, ...]
    staging_limit: int
    hits: npt.NDArray[np.int64]  # [layers, experts]: looked up and there
    misses: npt.NDArray[np.int64]
    prefetched: npt.NDArray[np.int64]  # [layers, experts]: bets on it
    prefetch_used: npt.NDArray[np.int64]  # those that arrived in time
    in_vain: npt.NDArray[np.int64]  # [layers]: bytes moved of those that were wasted
    progress: Progress  # of transfers into the slots of bets
    here: Pairs  # experts of the step that are there, with their slots: residents, then bets
    arrived: int  # how many of them had been bet on
    different: int  # how many experts were asked for
    placed: Pairs  # absent experts of the step that got a slot, with it

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
    def bets(self) -> BetCounts:
        """What became of bets, in all."""

    @property
    def staged(self) -> int:
        """Experts that are staged."""

    @property
    def room_for_bets(self) -> int:
        """How many bets may be placed, stale ones making way."""

    @property
    def called(self) -> list[int]:
        """Experts of the step that had been bet on and are on their way: to be called in."""

    @property
    def waiting(self) -> list[int]:
        """Experts of the step that have to wait for the next wave."""

    @property
    def waits(self) -> bool:
        """Whether there are any."""

    def decide(
        self, step: Routed, known: Known, whole: bool = True, router: Addresses = NOWHERE
    ) -> int:
        """A layer is routed: `record` it, settle bets on it, and if it is `whole`, `ask` for it.

        The Status; UNWANTED: bets are to be cancelled before anybody is asked for. `router`: where
        ids and scores are to be copied from, to those of the step. Raises ValueError for experts
        that do not exist.
        """

    def record(self, step: Routed, now: float | None = None) -> None:
        """Tell the policy of a layer's routing, before its experts are looked up.

        `now` on the heat's clock; None: as it says.
        """

    def ask(self, step: Routed) -> int:
        """A step needs its experts: look them up, count them, and `place` unless bets come first.

        Bets that have arrived are called in, those that failed are absent. The Status. Raises
        ValueError for experts that do not exist.
        """

    def ask_again(self) -> int:
        """The same for those that wait, uncounted."""

    def place(self, skip: bool = False) -> int:
        """Bring the absent in; `skip`: whoever came short waits. The Status."""

    def call_in(self, expert: int) -> None:
        """A bet on an expert of the step is waited for: it is staged no more."""

    def bet(self, layer: int, experts: Sequence[int]) -> Pairs:
        """Bet on absent experts, as far as there is room: those staged, with their slots.

        One spare slot stays for a demand; stale bets make way, the oldest first.
        """

    def oldest(self, layer: int | None = None) -> list[ExpertKey]:
        """The staged experts, in the order in which they were bet on.

        With a layer, those alone whose slots its experts could have.
        """

    @property
    def unwanted(self) -> list[int]:
        """Bets on the routed layer that are not done and not wanted, if there are any."""

    def drop(self, key: ExpertKey) -> None:
        """A bet ends that nobody has called in: in vain if it was moved."""

    def release(self, key: ExpertKey) -> None:
        """Free the slot of an expert, whatever its role."""

    @property
    def passing(self) -> int:
        """How many are in transit."""

    def end_transit(self) -> None:
        """Free the slots of all who are in transit."""

    def slot_of(self, key: ExpertKey) -> int | None:
        """The slot of an expert in any role."""

    def is_resident(self, key: ExpertKey) -> bool:
        """Whether it has come to stay."""

    def is_staged(self, key: ExpertKey) -> bool:
        """Whether it was bet on, and has not been called in."""

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
        super().__init__(
            *(pools, staging_limit, policy.worth, policy.admission),
            *(policy.activations, policy.heat.decaying),
        )
        self.policy = policy
        if policy.rule is not None:
            self.deciding.rate_by(policy.rule)

    def decide(
        self, step: Routed, known: Known, whole: bool = True, router: Addresses = NOWHERE
    ) -> int:
        """As the protocol says."""
        deciding, ids, layer = self.deciding, step.ids, step.layer
        now, waited, transfer, spent, computed = known
        policy, prompt = self.policy, len(ids) > len(step.segments)
        rule = policy.leave(step, now)
        ends = layer == policy.last and rule > 0
        own_ids, own_scores = step.at or step.addresses
        told_ids, told_scores = router
        tell(  # in full, because lists of arguments take their time
            deciding.memory,
            0,
            own_ids,
            own_scores,
            told_ids,
            told_scores,
            rule,
            policy.end(step, now) if ends else 0,
            now,
            waited,
            transfer,
            spent,
            computed,
            prompt,
            layer,
            ids.size,
            whole,
        )
        decide, address = deciding.decide, deciding.address
        if not rule:
            deciding.keep(address)
            self.record(step, now)
        status: int = decide(address)
        if status < 0:
            raise self._unknown(step)
        if ends:
            policy.learn()
        return self._look(status)

    def record(self, step: Routed, now: float | None = None) -> None:
        """As the protocol says."""
        policy = self.policy
        self._tell(step)
        if policy.shifts:
            self._native.mira_share(self.address)
        self._note(self.address)
        if policy.rate(step, now):
            self._changed.fill(1)
        self._struct.now = policy.seconds

    def ask(self, step: Routed) -> int:
        """As the protocol says."""
        self._tell(step)
        status = self._ask(self.address)
        if status < 0:
            raise self._unknown(step)
        return self._look(status)

    def _unknown(self, step: Routed) -> ValueError:
        return ValueError(f"Got ids up to {step.ids.max()} of {self.hits.shape[1]} experts")

    def _tell(self, step: Routed) -> None:
        ids, _ = step.at or step.addresses
        struct = self._struct
        struct.layer, struct.ids, struct.count = step.layer, ids, step.ids.size

    def slot_of(self, key: ExpertKey) -> int | None:
        """As the protocol says."""
        return int(self._slot[key]) if self._role[key] else None

    def is_resident(self, key: ExpertKey) -> bool:
        """As the protocol says."""
        return bool(self._role[key] == Role.RESIDENT)

    def is_staged(self, key: ExpertKey) -> bool:
        """As the protocol says."""
        return bool(self._role[key] == Role.STAGED)

    def oldest(self, layer: int | None = None) -> list[ExpertKey]:
        """As the protocol says."""
        numbers = self._arrays["staging"][: self.staged].tolist()
        keys = [ExpertKey(*divmod(number, self.hits.shape[1])) for number in numbers]
        return [key for key in keys if layer is None or self.places.share(key.layer, layer)]

    def members(self, role: Role) -> frozenset[ExpertKey]:
        """As the protocol says."""
        return frozenset(ExpertKey(*key) for key in np.argwhere(self._role == role).tolist())


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
