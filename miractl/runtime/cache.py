"""The expert cache: puts the brain's decisions into effect and counts what came of them.

One step of one layer at a time (the caller holds the layer lock); bets run beside it. The lock here
guards the slot table and the counters and is never held while bytes move or experts compute.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator

from miractl.native.residency import Status
from miractl.policy.keys import ExpertKey
from miractl.policy.routing import Routed
from miractl.policy.slots import Pairs, SlotTable
from miractl.runtime.counters import Counters, ExpertCounts, SwitchTimes
from miractl.runtime.transfer import State, Ticket, TransferQueue


class ExpertCache:
    """Slots, transfers and counters of one pool of equally shaped experts."""

    def __init__(
        self,
        residency: SlotTable,
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
        layers, experts = residency.hits.shape
        self._keys = [[ExpertKey(layer, e) for e in range(experts)] for layer in range(layers)]
        self.tickets: dict[ExpertKey, Ticket] = {}  # of staged experts, until they are adopted
        self._stale: set[ExpertKey] = set()  # of them, those whose layer has been routed since

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

        Hits come first, so that they are computed while the misses are on their way; then misses,
        together what has arrived. A group's slots are good until the next one is asked for. `then`
        is called when all demands are on their way. Raises what a transfer raised.
        """
        first = True
        while first or self.residency.waits:
            asked = self._clock()
            self._punch("decide")
            with self.lock:
                here, waiting = self._find(step, first)
            if first and then is not None:
                then()
            first = False
            try:
                if here:
                    self._punch("hits")
                    yield here
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

    def _find(self, step: Routed, first: bool) -> tuple[Pairs, list[Ticket]]:
        """Split a wave of a step into slots that are ready and transfers to wait for.

        The rest waits for another wave.
        """
        table = self.residency
        self.counters.waves += not first
        status = table.ask(step) if first else table.ask_again()
        here, coming = table.here, list[Ticket]()
        if status == Status.CALLED:
            self._call_in(step.layer, here, coming, count=first)
            status = table.place()
        while status == Status.SHORT:
            status = table.place(skip=not self._drop_bet(self.tickets))
        keys = self._keys[step.layer]
        coming += [self.transfers.submit(keys[expert], slot) for expert, slot in table.placed]
        return here, coming

    def _call_in(self, layer: int, here: Pairs, coming: list[Ticket], count: bool) -> None:
        """Bets are called in: in time one is a hit, under way it is late, failed it is a miss."""
        table = self.residency
        for expert in table.called:
            key = self._keys[layer][expert]
            ticket = self.tickets.pop(key)
            self._stale.discard(key)
            in_time = ticket.state is State.DONE
            (table.hits if in_time else table.misses)[key] += count
            if ticket.state is State.FAILED:
                table.fail(expert)
                self.counters.cancelled += 1
                continue
            slot = table.call_in(expert)
            if in_time:
                self.transfers.wait(ticket)
                here.append([expert, slot])
                self.counters.used += 1
                self.counts.prefetch_used[key] += 1
            else:
                coming.append(ticket)
                self.counters.late += 1
            table.policy.feedback(key, used=True)

    def _abandon(self, tickets: Iterable[Ticket]) -> None:
        """A step ended early: forget the experts whose bytes did not arrive."""
        for ticket in tickets:
            if not self.transfers.cancel(ticket):
                ticket.finished.wait()
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
            self.counters.wasted_bytes += self.expert_bytes
            self.residency.policy.feedback(key, used=False)
        else:
            self.counters.cancelled += 1
