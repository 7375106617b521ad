"""The expert cache: puts the brain's decisions into effect and counts what came of them.

One step of one layer at a time (the caller holds the layer lock); bets run beside it. The lock here
guards the slot table and the counters and is never held while bytes move or experts compute.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from miractl.native.residency import Status
from miractl.policy.keys import ExpertKey
from miractl.policy.routing import Routed
from miractl.policy.slots import Pairs, SlotTable
from miractl.runtime.counters import Counters, ExpertCounts, SwitchTimes
from miractl.runtime.host_compute import HostCompute
from miractl.runtime.transfer import BACKGROUND, State, Ticket, Transfers

NOWHERE = -1  # slot of an expert that is computed on the host, where it lies
FILLS = 4  # experts at most that are copied for later, once the host has computed them
UNDER_WAY = (State.QUEUED, State.RUNNING)


class ExpertCache:
    """Slots, transfers and counters of all experts."""

    def __init__(
        self,
        residency: SlotTable,
        transfers: Transfers,
        counts: ExpertCounts,
        expert_bytes: Sequence[int],
        clock: Callable[[], float],
        punch: Callable[[str], None] = lambda part: None,
        host: HostCompute | None = None,
    ) -> None:
        """`expert_bytes` are those of one expert of each layer.

        `punch` is told which part of a step begins. `host`: what misses may be left to.
        """
        self.residency, self.transfers = residency, transfers
        self.counts, self.counters, self.switches = counts, Counters(), SwitchTimes()
        self.expert_bytes = expert_bytes
        self.lock = threading.Lock()
        self._clock, self._punch = clock, punch
        layers, experts = residency.hits.shape
        self._keys = [[ExpertKey(layer, e) for e in range(experts)] for layer in range(layers)]
        self.tickets: dict[ExpertKey, Ticket] = {}  # of staged experts, until they are adopted
        self._stale: set[ExpertKey] = set()  # of them, those whose layer has been routed since
        self._host = host
        self._filling: dict[ExpertKey, Ticket] = {}  # residents whose bytes are on their way

    def bet(self, layer: int, experts: Iterable[tuple[int, float]]) -> None:
        """Stage absent experts of a layer, with their probabilities, as far as there is room."""
        with self.lock:
            for expert, probability in experts:
                key = ExpertKey(layer, expert)
                slot = self.residency.bet(key)
                if slot is None and self._drop_bet(self._stale):
                    slot = self.residency.bet(key)
                if slot is None:
                    return
                self.tickets[key] = self.transfers.submit(key, slot, 1 - probability)
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

    def serve(self, step: Routed, then: Callable[[], None] | None = None) -> Iterator[Pairs]:
        """Yield (expert, slot) for each expert of the step, in groups, as soon as they are there.

        Hits come first, so that they are computed while the misses are on their way; next what the
        host computes, with NOWHERE for a slot; then the other misses, together what has arrived. A
        group's slots are good until the next one is asked for. `then` is called when all demands
        are on their way. Raises what a transfer raised.
        """
        tokens = Counter(step.ids.reshape(-1).tolist()) if self._host else {}
        first = True
        while first or self.residency.waits:
            asked = self._clock()
            self._punch("decide")
            with self.lock:
                here, left, waiting = self._find(step, tokens, first)
            if first and then is not None:
                then()
            first = False
            try:
                if here:
                    self._punch("hits")
                    yield from self._timed(here, tokens)
                if left:
                    self._punch("misses")
                    yield from self._timed([[expert, NOWHERE] for expert in left], tokens)
                while waiting:
                    self._punch("waiting")
                    arrived, waiting = self._arrived(waiting, asked)
                    self._punch("misses")
                    yield [[ticket.key.expert, ticket.slot] for ticket in arrived]
            except BaseException:  # the generator was closed, or a transfer failed
                self._abandon(waiting)
                raise
            finally:
                with self.lock:
                    self.residency.end_transit()
        self._punch("sum")

    def _arrived(self, waiting: list[Ticket], asked: float) -> tuple[list[Ticket], list[Ticket]]:
        """Those of `waiting` whose bytes are there, at least one, and the rest.

        `asked` is the time of the demand. Raises what a transfer raised.
        """
        self.transfers.poll()
        if not any(ticket.state is State.DONE for ticket in waiting):
            self.transfers.wait(waiting[0])
        arrived = [ticket for ticket in waiting if ticket.state is State.DONE]
        for ticket in arrived:
            self.transfers.wait(ticket)
        with self.lock:
            for ticket in arrived:
                self.switches.add(max(0.0, ticket.finished_at - asked))
        if len(arrived) == len(waiting):
            return arrived, []
        return arrived, [ticket for ticket in waiting if ticket not in arrived]

    def _timed(self, group: Pairs, tokens: Mapping[int, int]) -> Iterator[Pairs]:
        """The group; how long it took is told to who decides what the host computes."""
        began = self._clock()
        yield group
        if self._host is not None:
            experts = [expert for expert, _ in group]
            self._host.computed(experts, tokens, self._clock() - began)

    def _find(
        self, step: Routed, tokens: Mapping[int, int], first: bool
    ) -> tuple[Pairs, list[int], list[Ticket]]:
        """Split a wave of a step: slots that are ready, what the host computes, transfers.

        The rest waits for another wave.
        """
        table, keys = self.residency, self._keys[step.layer]
        self.counters.waves += not first
        self.transfers.poll()
        status = table.ask(step) if first else table.ask_again()
        here = table.here
        coming = self._filled(step.layer, here, first) if self._filling else {}
        if status == Status.CALLED:
            self._call_in(step.layer, here, coming, first)
            status = table.place()
        while status == Status.SHORT:
            status = table.place(skip=not self._drop_bet(self.tickets.keys() - coming.keys()))
        if self._filling:
            self._drop_fills()
        placed, left = table.placed, list[int]()
        if self._host is not None:
            placed, left = self._leave(step.layer, placed, coming, tokens)
        for ticket in coming.values():
            self.transfers.overtake(ticket)
            if ticket.key in self.tickets:
                self._adopt_late(ticket.key)
        self.counters.waited += len(coming)
        self.counters.on_host += len(left)
        self.counters.copied += len(placed)
        asked = [self.transfers.submit(keys[expert], slot) for expert, slot in placed]
        return here, left, [*coming.values(), *asked]

    def _call_in(
        self, layer: int, here: Pairs, coming: dict[ExpertKey, Ticket], count: bool
    ) -> None:
        """Bets are called in: in time one is a hit, failed it is a miss, others are coming."""
        table = self.residency
        for expert in table.called:
            key = self._keys[layer][expert]
            ticket = self.tickets[key]
            in_time = ticket.state is State.DONE
            (table.hits if in_time else table.misses)[key] += count
            if ticket.state in UNDER_WAY:
                coming[key] = ticket
                if self._host is None:
                    self._adopt_late(key)
                continue
            del self.tickets[key]
            self._stale.discard(key)
            if ticket.state is State.FAILED:
                table.fail(expert)
                self.counters.cancelled += 1
                continue
            slot = table.call_in(expert)
            self.transfers.wait(ticket)
            here.append([expert, slot])
            self.counters.used += 1
            self.counts.prefetch_used[key] += 1
            table.policy.feedback(key, used=True)

    def _adopt_late(self, key: ExpertKey) -> None:
        """A bet under way is waited for."""
        del self.tickets[key]
        self._stale.discard(key)
        self.residency.call_in(key.expert)
        self.counters.late += 1
        self.residency.policy.feedback(key, used=True)

    def _filled(self, layer: int, here: Pairs, count: bool) -> dict[ExpertKey, Ticket]:
        """Take out of the residents those whose bytes are still on their way."""
        coming: dict[ExpertKey, Ticket] = {}
        for pair in list(here):
            key = self._keys[layer][pair[0]]
            ticket = self._filling.pop(key, None)
            if ticket is None:
                continue
            if ticket.state not in UNDER_WAY:
                self.transfers.wait(ticket)
                continue
            coming[key] = ticket
            here.remove(pair)
            self.residency.hits[key] -= count
            self.residency.misses[key] += count
        return coming

    def _drop_fills(self) -> None:
        """End the copies of residents that had to go, before somebody else gets their slots."""
        for key, ticket in list(self._filling.items()):
            if self.residency.slot_of(key) == ticket.slot:
                continue
            del self._filling[key]
            if not self.transfers.cancel(ticket):
                self.transfers.finish(ticket)

    def _leave(
        self,
        layer: int,
        placed: Pairs,
        coming: dict[ExpertKey, Ticket],
        tokens: Mapping[int, int],
    ) -> tuple[Pairs, list[int]]:
        """What is still copied at once, and the experts that are left to the host.

        Of what is left, copies under way go on, and some of those that have come to stay are copied
        for later, behind everything else.
        """
        assert self._host is not None
        table, keys, waiting = self.residency, self._keys[layer], self.residency.waiting
        absent = [keys[expert] for expert in (*(e for e, _ in placed), *waiting)]
        chosen = self._host.choose(absent, coming, tokens, self._clock())
        for key in chosen & coming.keys():
            ticket = coming.pop(key)
            if key not in self.tickets:
                self._filling[key] = ticket
            elif self.transfers.cancel(ticket):
                self._drop(key, ticket)
        left = {key.expert for key in chosen}
        table.dismiss(left)
        for expert, slot in placed:
            if expert in left:
                self._fill(keys[expert], slot)
        return [pair for pair in placed if pair[0] not in left], sorted(left)

    def _fill(self, key: ExpertKey, slot: int) -> None:
        for done in [k for k, t in self._filling.items() if t.state is State.DONE]:
            self.transfers.wait(self._filling.pop(done))
        if len(self._filling) < FILLS and self.residency.is_resident(key):
            self._filling[key] = self.transfers.submit(key, slot, BACKGROUND)
        else:
            self.residency.release(key)

    def _abandon(self, tickets: Iterable[Ticket]) -> None:
        """A step ended early: forget the experts whose bytes did not arrive."""
        for ticket in tickets:
            if not self.transfers.cancel(ticket):
                self.transfers.finish(ticket)
            if ticket.state is not State.DONE:
                with self.lock:
                    self.residency.release(ticket.key)

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
            self.counters.wasted_bytes += self.expert_bytes[key.layer]
            self.residency.policy.feedback(key, used=False)
        else:
            self.counters.cancelled += 1
