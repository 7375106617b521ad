"""Experts brought ahead of need, in Python: what becomes of them.

The reference of `miractl/native/src/staged.c`, and what installs without the library run.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from miractl.native.places import SlotPool
from miractl.native.residency import BetCounts, State
from miractl.native.residency_layout import Progress
from miractl.policy.brain import Brain
from miractl.policy.keys import ExpertKey
from miractl.policy.residency import Residency
from miractl.policy.routing import Ids

Counts = npt.NDArray[np.int64]  # [layers, experts]


def overrun(passed: float, transfer: float, chunks: int) -> float:
    """How long a transfer goes on that has had the link for `passed`, when others want it.

    It is left at the end of one of its `chunks`.
    """
    if passed >= transfer:
        return 0.0
    chunk = transfer / chunks
    return min(math.ceil(passed / chunk) * chunk, transfer) - passed


class Settled(NamedTuple):
    """Of a routed layer: experts not resident; bets on it that are not done and not wanted.

    Seconds that it would wait without bets, that bets saved of it, and that it waits for others.
    """

    missing: int
    unwanted: list[int]
    stall: float
    gained: float
    lost: float


class StagedResidency(Residency):
    """A slot table that follows the transfers into the slots of bets."""

    def __init__(self, pools: Sequence[SlotPool], staging_limit: int, policy: Brain) -> None:
        """Raises ValueError for an impossible division."""
        super().__init__(pools, staging_limit, policy)
        self.progress = Progress(self.slots)
        self.evictions = self.bypassed = 0
        self.prefetched: Counts = np.zeros(policy.worth.shape, np.int64)
        self.prefetch_used: Counts = np.zeros_like(self.prefetched)
        self.in_vain: Counts = np.zeros(len(policy.worth), np.int64)
        self.counted = dict.fromkeys(BetCounts._fields, 0)
        self._stale: set[ExpertKey] = set()  # staged, and their layer has been routed since
        self.unwanted: list[int] = []  # experts of bets on the routed layer, to be cancelled
        self._needed: frozenset[ExpertKey] = frozenset()  # by the step under way, of one layer

    @property
    def bets(self) -> BetCounts:
        """What became of bets, in all."""
        return BetCounts(**self.counted)

    @property
    def staged(self) -> int:
        """Experts that are staged."""
        return len(self._staged)

    @property
    def room_for_bets(self) -> int:
        """How many bets may be placed, stale ones making way."""
        return max(0, self.staging_limit - len(self._staged) + len(self._stale))

    def oldest(self, layer: int | None = None) -> list[ExpertKey]:
        """The staged experts whose places the layer could have, as they were bet on; or all."""
        share = self.places.share
        return [key for key in self._staged if layer is None or share(key.layer, layer)]

    def release(self, key: ExpertKey) -> None:
        """Free the slot of an expert, whatever its role."""
        self._stale.discard(key)
        super().release(key)

    def use(self, key: ExpertKey, counted: str) -> int:
        """A bet was right, `used` or `late`: its slot."""
        slot = self.adopt(key)
        self._stale.discard(key)
        self.counted[counted] += 1
        self.prefetch_used[key] += counted == "used"
        self.policy.feedback(key, used=True)
        return slot

    def drop(self, key: ExpertKey) -> None:
        """A bet ends that nobody has called in: in vain if it was moved."""
        if moved := int(self.progress.moved[self._staged[key]]):
            self.counted["wasted"] += 1
            self.in_vain[key.layer] += moved
            self.policy.feedback(key, used=False)
        else:
            self.counted["cancelled"] += 1
        self.release(key)

    def bet(self, layer: int, experts: Sequence[int]) -> list[list[int]]:
        """Bet on absent experts, as far as there is room: those staged, with their slots."""
        pairs: list[list[int]] = []
        for expert in experts:
            key = ExpertKey(layer, expert)
            if len(self._staged) >= self.staging_limit:
                self.drop_stale()
            if self.is_full(layer):
                self.drop_stale(layer)
            place = self.stage(key, self._needed)
            if place is None:
                break
            self.evictions += place.evicted is not None
            self.progress.state[place.slot], self.progress.moved[place.slot] = State.QUEUED, 0
            self.counted["issued"] += 1
            self.prefetched[key] += 1
            pairs.append([expert, place.slot])
        return pairs

    def judge_bets(
        self, layer: int, ids: Ids, now: float, transfer: float, compute: float, chunks: int
    ) -> Settled:
        """A layer is routed: what became of the bets on it; those not wanted are stale.

        `compute`: seconds of an expert; those that are there are computed while others come.
        `chunks`: of a transfer, which others that want the link need not wait for to its end.
        """
        there = self._standing.resident[layer]
        known = np.unique(ids[(ids >= 0) & (ids < len(there))])
        missing = int(np.count_nonzero(~there[known]))
        beside = (missing - 1) * min(compute, transfer)
        slack = (len(known) - missing) * compute + beside - missing * transfer
        stall = max(0.0, -slack) if missing else 0.0
        gained = lost = 0.0
        wanted, progress, self.unwanted = set(known.tolist()), self.progress, []
        self._needed = frozenset(self.keys(layer, wanted))
        for key, slot in self._staged.items():
            own, state = key.layer == layer, State(progress.state[slot])
            right = own and key.expert in wanted
            if own and not right:
                self._stale.add(key)
                if state < State.DONE:
                    self.unwanted.append(key.expert)
            elif own:
                self._stale.discard(key)
            if state is State.QUEUED or state > State.DONE:
                continue
            until = now if state is State.RUNNING else float(progress.finished[slot])
            passed = until - float(progress.began[slot])
            if right:
                gained += min(transfer, passed)
            elif state is State.RUNNING:
                lost = max(lost, overrun(passed, transfer, chunks))
        lost = max(0.0, lost - max(0.0, slack)) if missing else 0.0
        return Settled(missing, self.unwanted, stall, min(gained, stall), lost)

    def drop_stale(self, layer: int | None = None) -> None:
        """The oldest stale bet that has ended goes, if any: of the layer's set, or of all."""
        for key in self.oldest(layer):
            slot = self._staged[key]
            if key in self._stale and self.progress.state[slot] >= State.DONE:
                self.drop(key)
                return
