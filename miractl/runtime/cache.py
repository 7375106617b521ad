"""The expert cache: puts the brain's decisions into effect and counts what came of them.

One step of one layer at a time (the caller holds the layer lock); bets run beside it. The lock here
guards the slot table and the counters and is never held while bytes move or experts compute.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from miractl.policy.keys import ExpertKey
from miractl.policy.residency import Place, Residency, Role
from miractl.runtime.counters import Counters, ExpertCounts, SwitchTimes
from miractl.runtime.transfer import State, Ticket, TransferQueue


class ExpertCache:
    """Slots, transfers and counters of one pool of equally shaped experts."""

    def __init__(
        self,
        residency: Residency,
        transfers: TransferQueue,
        counts: ExpertCounts,
        expert_bytes: int,
        clock: Callable[[], float],
        punch: Callable[[str], None] = lambda part: None,
    ) -> None:
        """`punch` is told which part of a step begins."""
        self.residency, self.transfers = residency, transfers
        self.counts, self.counters, self.switches = counts, Counters(), SwitchTimes()
        self.expert_bytes = expert_bytes
        self.lock = threading.Lock()
        self._clock, self._punch = clock, punch
        self.tickets: dict[ExpertKey, Ticket] = {}  # of staged experts, until they are adopted
        self._stale: set[ExpertKey] = set()  # of them, those whose layer has been routed since

    def bet(self, layer: int, experts: Iterable[tuple[int, float]]) -> None:
        """Stage absent experts of a layer, with their probabilities, as far as there is room."""
        with self.lock:
            for expert, probability in experts:
                key = ExpertKey(layer, expert)
                place = self.residency.stage(key) or (
                    self.residency.stage(key) if self._drop_bet(self._stale) else None
                )
                if place is None:
                    return
                self.tickets[key] = self.transfers.submit(key, place.slot, 1 - probability)
                self.counters.issued += 1
                self.counts.prefetched[key] += 1

    def room_for_bets(self) -> int:
        """How many bets may be placed, stale ones making way. The caller holds the lock."""
        return self.residency.staging_limit - len(self.tickets) + len(self._stale)

    def drop_bets(self, layer: int, wanted: Collection[int]) -> None:
        """A layer is routed: bets on it that it has no use for end, or are stale if they had begun.

        `wanted` are its experts. The caller holds the lock.
        """
        for key, ticket in list(self.tickets.items()):
            if key.layer != layer or key.expert in wanted:
                continue
            if self.transfers.cancel(ticket):
                self._drop(key, ticket)
            else:
                self._stale.add(key)

    def serve(
        self, layer: int, experts: Sequence[int], then: Callable[[], None] | None = None
    ) -> Iterator[list[tuple[int, int]]]:
        """Yield (expert, slot) for each expert of the step, in groups, as soon as they are there.

        Hits come first, so that they are computed while the misses are on their way; then misses,
        together what has arrived. A group's slots are good until the next one is asked for. `then`
        is called when all demands are on their way. Raises what a transfer raised.
        """
        needed = set(self.residency.keys(layer, experts))
        first = True
        while needed:
            asked = self._clock()
            self._punch("decide")
            with self.lock:
                here, coming = self._find(sorted(needed), needed, count=first)
                self.counters.waves += not first
            if first and then is not None:
                then()
            first = False
            needed -= here.keys() | coming.keys()
            try:
                if here:
                    self._punch("hits")
                    yield [(key.expert, slot) for key, slot in here.items()]
                waiting = list(coming.values())
                while waiting:
                    self._punch("waiting")
                    arrived = self._arrived(waiting, asked)
                    waiting = [ticket for ticket in waiting if ticket not in arrived]
                    self._punch("misses")
                    yield [(ticket.key.expert, ticket.slot) for ticket in arrived]
            except BaseException:  # the generator was closed, or a transfer failed
                self._abandon(coming.values())
                raise
            finally:
                self._end_transit()
        self._punch("sum")

    def _arrived(self, waiting: Sequence[Ticket], asked: float) -> list[Ticket]:
        """At least one of `waiting`, and all whose bytes are there. Raises what a transfer raised.

        `asked` is the time of the demand.
        """
        if not any(ticket.state is State.DONE for ticket in waiting):
            self.transfers.wait(waiting[0])
        arrived = [ticket for ticket in waiting if ticket.state is State.DONE]
        for ticket in arrived:
            self.transfers.wait(ticket)
            with self.lock:
                self.switches.add(max(0.0, ticket.finished_at - asked))
        return arrived

    def _find(
        self, keys: Sequence[ExpertKey], needed: set[ExpertKey], count: bool
    ) -> tuple[dict[ExpertKey, int], dict[ExpertKey, Ticket]]:
        """Split the step into slots that are ready and transfers to wait for; the rest waits.

        Residents are looked up before anything is placed: `needed` then protects all of them.
        """
        here = self.residency.residents(keys)
        coming: dict[ExpertKey, Ticket] = {}
        others = [key for key in keys if key not in here]
        absent = [key for key in others if not self.residency.has(key, Role.STAGED)]
        for key in others:
            if self.residency.has(key, Role.STAGED):
                self._adopt(key, needed, here, coming, absent)
        if count:
            layer = keys[0].layer
            hits, misses = self.counts.hits[layer], self.counts.misses[layer]
            for key in keys:
                (hits if key in here else misses)[key.expert] += 1
        for key in absent:
            if (place := self._demand(key, needed)) is not None:
                self._note(place)
                coming[key] = self.transfers.submit(key, place.slot)
        return here, coming

    def _adopt(
        self,
        key: ExpertKey,
        needed: set[ExpertKey],
        here: dict[ExpertKey, int],
        coming: dict[ExpertKey, Ticket],
        absent: list[ExpertKey],
    ) -> None:
        """A bet is called in: in time it is a hit, under way it is late, failed it is a miss."""
        ticket = self.tickets.pop(key)
        self._stale.discard(key)
        if ticket.state is State.FAILED:
            self.residency.release(key)
            self.counters.cancelled += 1
            absent.append(key)
            return
        self._note(place := self.residency.adopt(key, needed))
        if ticket.state is State.DONE:
            self.transfers.wait(ticket)
            here[key] = place.slot
            self.counters.used += 1
            self.counts.prefetch_used[key] += 1
        else:
            coming[key] = ticket
            self.counters.late += 1
        self.residency.policy.feedback(key, used=True)

    def _demand(self, key: ExpertKey, needed: set[ExpertKey]) -> Place | None:
        place = self.residency.demand(key, needed)
        if place is None and self._drop_bet(self.tickets):
            place = self.residency.demand(key, needed)
        return place

    def _abandon(self, tickets: Iterable[Ticket]) -> None:
        """A step ended early: forget the experts whose bytes did not arrive."""
        for ticket in tickets:
            if not self.transfers.cancel(ticket):
                ticket.finished.wait()
            if ticket.state is not State.DONE:
                with self.lock:
                    self.residency.release(ticket.key)

    def _end_transit(self) -> None:
        with self.lock:
            for key in self.residency.members(Role.TRANSIT):
                self.residency.release(key)

    def _drop_bet(self, among: Collection[ExpertKey]) -> bool:
        """Free the slot of a bet among these; False if there is none.

        One that is being written cannot be dropped. Oldest first: tickets keep insertion order.
        """
        for key, ticket in self.tickets.items():
            if key not in among:
                continue
            if self.transfers.cancel(ticket) or ticket.state in (State.DONE, State.FAILED):
                self._drop(key, ticket)
                return True
        return False

    def _drop(self, key: ExpertKey, ticket: Ticket) -> None:
        """A bet that nobody called in: in vain if it was moved."""
        del self.tickets[key]
        self._stale.discard(key)
        self.residency.release(key)
        if ticket.state is State.DONE:
            self.counters.wasted += 1
            self.counters.wasted_bytes += self.expert_bytes
            self.residency.policy.feedback(key, used=False)
        else:
            self.counters.cancelled += 1

    def _note(self, place: Place) -> None:
        self.counters.evictions += place.evicted is not None
        self.counters.bypassed += place.role is Role.TRANSIT
