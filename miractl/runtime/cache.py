"""The expert cache: puts the brain's decisions into effect and counts what came of them.

One step of one layer at a time (the caller holds the layer lock); bets run beside it. The lock here
guards the slot table and the counters and is never held while bytes move or experts compute.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from miractl.policy.keys import ExpertKey
from miractl.policy.residency import Place, Residency, Role
from miractl.runtime.counters import Counters, ExpertCounts, SwitchTimes
from miractl.runtime.host_compute import HostCompute
from miractl.runtime.transfer import BACKGROUND, State, Ticket, Transfers

NOWHERE = -1  # slot of an expert that is computed on the host, where it lies
FILLS = 4  # experts at most that are copied for later, once the host has computed them
UNDER_WAY = (State.QUEUED, State.RUNNING)


class ExpertCache:
    """Slots, transfers and counters of one pool of equally shaped experts."""

    def __init__(
        self,
        residency: Residency,
        transfers: Transfers,
        counts: ExpertCounts,
        expert_bytes: int,
        clock: Callable[[], float],
        punch: Callable[[str], None] = lambda part: None,
        host: HostCompute | None = None,
    ) -> None:
        """`punch` is told which part of a step begins. `host`: what misses may be left to."""
        self.residency, self.transfers = residency, transfers
        self.counts, self.counters, self.switches = counts, Counters(), SwitchTimes()
        self.expert_bytes = expert_bytes
        self.lock = threading.Lock()
        self._clock, self._punch = clock, punch
        self.tickets: dict[ExpertKey, Ticket] = {}  # of staged experts, until they are adopted
        self._stale: set[ExpertKey] = set()  # of them, those whose layer has been routed since
        self._host = host
        self._filling: dict[ExpertKey, Ticket] = {}  # residents whose bytes are on their way

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
        self,
        layer: int,
        experts: Sequence[int],
        then: Callable[[], None] | None = None,
        tokens: Mapping[int, int] | None = None,
    ) -> Iterator[list[tuple[int, int]]]:
        """Yield (expert, slot) for each expert of the step, in groups, as soon as they are there.

        Hits come first, so that they are computed while the misses are on their way; next what the
        host computes, with NOWHERE for a slot; then the other misses, together what has arrived. A
        group's slots are good until the next one is asked for. `then` is called when all demands
        are on their way. `tokens` of each expert; without it one. Raises what a transfer raised.
        """
        tokens = tokens or dict.fromkeys(experts, 1)
        needed = set(self.residency.keys(layer, experts))
        first = True
        while needed:
            asked = self._clock()
            self._punch("decide")
            with self.lock:
                here, coming, left = self._find(sorted(needed), needed, tokens, count=first)
                self.counters.waves += not first
            if first and then is not None:
                then()
            first = False
            needed -= here.keys() | coming.keys() | left
            try:
                if here:
                    self._punch("hits")
                    yield from self._timed([(key.expert, s) for key, s in here.items()], tokens)
                if left:
                    self._punch("misses")
                    yield from self._timed([(key.expert, NOWHERE) for key in sorted(left)], tokens)
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

    def _timed(
        self, group: list[tuple[int, int]], tokens: Mapping[int, int]
    ) -> Iterator[list[tuple[int, int]]]:
        """The group; how long it took is told to who decides what the host computes."""
        began = self._clock()
        yield group
        if self._host is not None:
            experts = [expert for expert, _ in group]
            self._host.computed(experts, tokens, self._clock() - began)

    def _arrived(self, waiting: Sequence[Ticket], asked: float) -> list[Ticket]:
        """At least one of `waiting`, and all whose bytes are there. Raises what a transfer raised.

        `asked` is the time of the demand.
        """
        self.transfers.poll()
        if not any(ticket.state is State.DONE for ticket in waiting):
            self.transfers.wait(waiting[0])
        arrived = [ticket for ticket in waiting if ticket.state is State.DONE]
        for ticket in arrived:
            self.transfers.wait(ticket)
            with self.lock:
                self.switches.add(max(0.0, ticket.finished_at - asked))
        return arrived

    def _find(
        self,
        keys: Sequence[ExpertKey],
        needed: set[ExpertKey],
        tokens: Mapping[int, int],
        count: bool,
    ) -> tuple[dict[ExpertKey, int], dict[ExpertKey, Ticket], set[ExpertKey]]:
        """Split the step: slots that are ready, transfers to wait for, what the host computes.

        What is in none of them waits for a wave. Residents are looked up before anything is
        placed: `needed` then protects all of them.
        """
        self.transfers.poll()
        here = self.residency.residents(keys)
        coming = self._arriving(here)
        absent = [key for key in keys if key not in here and key not in coming]
        for key in [key for key in absent if key in self.tickets]:
            absent.remove(key)
            if self.tickets[key].state in UNDER_WAY:
                coming[key] = self.tickets[key]
            elif not self._adopt(key, needed, here):
                absent.append(key)
        left = self._leave(absent, coming, needed, tokens)
        for key, ticket in coming.items():
            self.transfers.overtake(ticket)
            if key in self.tickets:
                self._adopt_late(key, needed)
        if count:
            self._count(keys, here)
        self.counters.waited += len(coming)
        self.counters.on_host += len(left)
        for key in absent:
            if (place := self._demand(key, needed)) is not None:
                self._note(place)
                coming[key] = self.transfers.submit(key, place.slot)
                self.counters.copied += 1
        return here, coming, left

    def _count(self, keys: Sequence[ExpertKey], here: Collection[ExpertKey]) -> None:
        layer = keys[0].layer
        hits, misses = self.counts.hits[layer], self.counts.misses[layer]
        for key in keys:
            (hits if key in here else misses)[key.expert] += 1

    def _arriving(self, here: dict[ExpertKey, int]) -> dict[ExpertKey, Ticket]:
        """Take out of the residents those whose bytes are still on their way."""
        coming: dict[ExpertKey, Ticket] = {}
        for key in [key for key in self._filling if key in here]:
            ticket = self._filling.pop(key)
            if ticket.state in UNDER_WAY:
                coming[key] = ticket
                del here[key]
            else:
                self.transfers.wait(ticket)
        return coming

    def _leave(
        self,
        absent: list[ExpertKey],
        coming: dict[ExpertKey, Ticket],
        needed: set[ExpertKey],
        tokens: Mapping[int, int],
    ) -> set[ExpertKey]:
        """Take out of the missing experts those that are left to the host.

        Bets and fills among them that are being copied are copied on; of the rest, some are copied
        for later, behind everything else, where they are worth a resident's place.
        """
        if self._host is None:
            return set()
        left = self._host.choose(absent, coming, tokens, self._clock())
        for key in left & coming.keys():
            ticket = coming.pop(key)
            if key not in self.tickets:
                self._filling[key] = ticket
            elif self.transfers.cancel(ticket):
                self._drop(key, ticket)
                absent.append(key)
        for key in [key for key in absent if key in left]:
            absent.remove(key)
            self._fill(key, needed)
        return left

    def _fill(self, key: ExpertKey, needed: set[ExpertKey]) -> None:
        for done in [k for k, t in self._filling.items() if t.state is State.DONE]:
            self.transfers.wait(self._filling.pop(done))
        if len(self._filling) == FILLS:
            return
        place = self.residency.demand(key, needed)
        if place is None:
            return
        if place.role is Role.TRANSIT:
            self.residency.release(key)
            return
        self._note(place)
        self._filling[key] = self.transfers.submit(key, place.slot, BACKGROUND)

    def _adopt(self, key: ExpertKey, needed: set[ExpertKey], here: dict[ExpertKey, int]) -> bool:
        """A bet that is over is called in: in time it is a hit; False if it failed."""
        ticket = self.tickets.pop(key)
        self._stale.discard(key)
        if ticket.state is State.FAILED:
            self.residency.release(key)
            self.counters.cancelled += 1
            return False
        self._note(place := self.residency.adopt(key, needed))
        self.transfers.wait(ticket)
        here[key] = place.slot
        self.counters.used += 1
        self.counts.prefetch_used[key] += 1
        self.residency.policy.feedback(key, used=True)
        return True

    def _adopt_late(self, key: ExpertKey, needed: set[ExpertKey]) -> None:
        """A bet under way is waited for."""
        del self.tickets[key]
        self._stale.discard(key)
        self._note(self.residency.adopt(key, needed))
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
                self.transfers.finish(ticket)
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
        if place.evicted is None or (ticket := self._filling.pop(place.evicted, None)) is None:
            return
        if not self.transfers.cancel(ticket):
            self.transfers.finish(ticket)  # before its slot is written to for somebody else
