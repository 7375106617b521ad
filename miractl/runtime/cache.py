"""The expert cache: puts the brain's decisions into effect and counts what came of them.

One step of one layer at a time (the caller holds the layer lock); bets run beside it. The lock here
guards the slot table and the counters and is never held while bytes move or experts compute.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from miractl.native.residency import Pairs, State, Status
from miractl.policy.keys import ExpertKey
from miractl.policy.prediction import Probabilities
from miractl.policy.routing import NOWHERE, Addresses, Routed
from miractl.policy.slots import SlotTable
from miractl.runtime.counters import Counters, SwitchTimes
from miractl.runtime.host_compute import HostCompute
from miractl.runtime.host_side import HostSide
from miractl.runtime.ticket import ENDED, Ticket
from miractl.runtime.transfer import Transfers

if TYPE_CHECKING:
    from miractl.runtime.prefetch import Prefetcher

NOBODY: list[Ticket] = []
NO_SLOT = -1  # of an expert that is computed on the host, where it lies
DONE = State.DONE  # looked up once
PLACED, UNWANTED, HERE = int(Status.PLACED), int(Status.UNWANTED), int(Status.HERE)


class ExpertCache:
    """Slots, transfers and counters of all experts.

    `route` a layer's step or its `parts`, then `serve` it.
    """

    def __init__(
        self,
        residency: SlotTable,
        transfers: Transfers,
        clock: Callable[[], float],
        punch: Callable[[str], None] = lambda part: None,
        host: HostCompute | None = None,
    ) -> None:
        """`punch` is told which part of a step begins. `host`: what misses may be left to."""
        self.residency, self.transfers = residency, transfers
        self.bets: Prefetcher | None = None
        self._counters, self.switches = Counters(), SwitchTimes()
        self.lock = threading.Lock()
        self._clock, self._punch = clock, punch
        layers, experts = residency.hits.shape
        self._keys = [[ExpertKey(layer, e) for e in range(experts)] for layer in range(layers)]
        self._tickets: dict[int, Ticket] = {}  # of staged experts, by slot
        self._spent, self._computed = 0.0, 0  # what hits took last, in seconds; how many they were
        self._host = None if host is None else HostSide(host, residency, transfers, clock)
        # Of the wave under way: when it was asked for, who is there and who comes.
        self._asked = 0.0
        self._here: Pairs = []
        self._waiting: list[Ticket] = []
        self.lost: dict[int, Exception] = {}  # experts of the last step that could not be brought

    @property
    def counters(self) -> Counters:
        """Totals since the start; what becomes of bets is counted by the slot table."""
        counters, bets = self._counters, self.residency.bets
        counters.issued, counters.used, counters.late = bets.issued, bets.used, bets.late
        counters.wasted, counters.cancelled = bets.wasted, bets.cancelled
        counters.wasted_bytes = int(self.residency.in_vain.sum())
        return counters

    def count_step(self, tokens: int) -> None:
        """A step of so many tokens begins."""
        self._counters.steps += 1
        self._counters.tokens += tokens

    def issue(self, layer: int, bets: Pairs, guesses: Probabilities) -> None:
        """Bring staged experts of a layer, the likelier first. The caller holds the lock."""
        if self._host is not None:
            self._host.drop_fills()
        keys, progress, tickets = self._keys[layer], self.residency.progress, self._tickets
        submit, guess = self.transfers.submit, guesses.item
        for expert, slot in bets:
            tickets[slot] = submit(keys[expert], slot, 1 - guess(expert), progress)

    def route(
        self, step: Routed, hidden: Any, whole: bool = True, router: Addresses = NOWHERE
    ) -> int:
        """A layer is routed: settle bets on it, demand what it lacks, bet on those after it.

        Returns how many different experts it wants; they are to be served next. A step that is not
        `whole` is asked for in parts. `hidden` [tokens, H] entered it; `router`: as
        `SlotTable.decide` says.
        """
        queue, table, clock = self.transfers, self.residency, self._clock
        queue.poll()
        self._asked = now = clock()
        waited, each = queue.stats.waited_seconds, queue.seconds_each
        with self.lock:
            known = now, waited, each, self._spent, self._computed
            status = table.decide(step, known, whole, router)
            if status == UNWANTED:
                self._cancel_bets(step.layer)
                status = table.ask(step) if whole else PLACED
            if whole:
                self._computed = 0
                self._find(step, status)
                if self.bets is not None:
                    self.bets.bet(step, hidden)
        return table.different

    def parts(self, step: Routed, hidden: Any, limit: int) -> Iterator[tuple[slice, Routed, int]]:
        """Route a step, so many tokens of it at a time: rows, those tokens, different experts.

        Each is to be served before the next.
        """
        if len(step.ids) <= limit:
            yield slice(None), step, self.route(step, hidden)
            return
        self.route(step, hidden, whole=False)
        bets = self.bets
        for rows, part in step.parts(limit):
            self._look(part, begins=True)
            if bets is not None:
                with self.lock:
                    bets.bet(step, hidden)
                bets = None
            yield rows, part, self.residency.different

    def serve(self, step: Routed) -> Iterator[Pairs]:
        """Yield (expert, slot) for each expert asked for, in groups, as soon as they are there.

        Hits come first, so that they are computed while the misses are on their way; next what the
        host computes, with NO_SLOT; then the other misses, together what has arrived. A group's
        slots are good until the next one is asked for. What a transfer raises is kept in `lost`:
        the slot yielded for its expert has anything in it. Where not all groups are asked for,
        `abandon` has to follow.
        """
        if self.lost:
            self.lost = {}
        table, host, clock, punch = self.residency, self._host, self._clock, self._punch
        while True:
            if here := self._here:
                punch("hits")
                began = clock()
                yield here
                self._spent, self._computed = clock() - began, len(here)
                if host is not None:
                    host.hit([expert for expert, _ in here], self._spent)
            if host is not None and host.left:
                punch("misses")
                began = clock()
                yield [[expert, NO_SLOT] for expert in host.left]
                host.computed(host.left, clock() - began)
            while self._waiting:
                punch("waiting")
                arrived = self._arrived()
                punch("misses")
                yield arrived
            if table.passing:
                with self.lock:
                    table.end_transit()
            if not table.waits:
                break
            punch("decide")
            self._look(step, begins=False)
        punch("sum")

    def abandon(self) -> None:
        """A step ended early: forget the experts whose bytes did not arrive."""
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            if not self.transfers.abandon(ticket):
                self.transfers.finish(ticket)
        self._forget(waiting)
        with self.lock:
            self.residency.end_transit()

    def _forget(self, tickets: Sequence[Ticket]) -> None:
        """Experts whose bytes are not there, whatever the table thinks, are in no slot."""
        with self.lock:
            for ticket in tickets:
                if ticket.state is not DONE:
                    self.residency.release(ticket.key)

    def _look(self, step: Routed, begins: bool) -> None:
        """Ask for a part of a step; or for its next wave."""
        self.transfers.poll()
        self._asked = self._clock()
        with self.lock:
            if begins:
                self._computed = 0
                status = self.residency.ask(step)
            else:
                self._counters.waves += 1
                status = self.residency.ask_again()
            self._find(step, status)

    def _find(self, step: Routed, status: int) -> None:
        """Split a wave of a step: slots that are ready, what the host computes, transfers.

        The rest waits for another wave. `status` is the table's, which has been asked.
        """
        table, host = self.residency, self._host
        self._here = here = table.here
        if status == HERE and host is None:
            self._waiting = NOBODY
            return
        keys = self._keys[step.layer]
        coming: dict[ExpertKey, Ticket] = {}
        if table.arrived:
            for _, slot in here[-table.arrived :]:
                self.transfers.wait(self._tickets[slot])
        if host is not None:
            coming = host.coming(step, keys, here)
        if status:
            self._make_room(status, keys, coming)
        placed = table.placed
        if host is not None:
            placed = host.leave(keys, placed, coming)
            self._counters.on_host += len(host.left)
        if coming:
            self._await(coming)
        self._waiting = [*coming.values()]
        if placed:
            self._counters.copied += len(placed)
            submit = self.transfers.submit
            self._waiting += [submit(keys[expert], slot) for expert, slot in placed]

    def _arrived(self) -> Pairs:
        """Those that are waited for and there, or cannot be brought; at least one."""
        queue, wait, waiting = self.transfers, self._wait, self._waiting
        queue.poll()
        arrived = [ticket for ticket in waiting if ticket.state in ENDED]
        if not arrived:
            wait(waiting[0])
            arrived = [ticket for ticket in waiting if ticket.state in ENDED]
        for ticket in arrived:
            wait(ticket)
        if self.lost:  # nobody gets their slots before the step is through
            self._forget(arrived)
        whole, asked = len(arrived) == len(waiting), self._asked
        self._waiting = NOBODY if whole else [one for one in waiting if one not in arrived]
        with self.lock:
            self.switches.add([ticket.finished_at - asked for ticket in arrived])
        return [[ticket.key.expert, ticket.slot] for ticket in arrived]

    def _wait(self, ticket: Ticket) -> None:
        try:
            self.transfers.wait(ticket)
        except Exception as error:
            self.lost[ticket.key.expert] = error

    def _cancel_bets(self, layer: int) -> None:
        """End bets on a layer that it does not want, at once or where they can be left."""
        for expert in self.residency.unwanted:
            key = self._keys[layer][expert]
            if self.transfers.abandon(self._ticket(key)):
                self.residency.drop(key)

    def _await(self, coming: dict[ExpertKey, Ticket]) -> None:
        """Transfers under way are waited for."""
        for key, ticket in coming.items():
            coming[key] = self.transfers.overtake(ticket)
            if self.residency.is_staged(key):
                self.residency.call_in(key.expert)
        self._counters.waited += len(coming)

    def _make_room(
        self, status: int, keys: Sequence[ExpertKey], coming: dict[ExpertKey, Ticket]
    ) -> None:
        """Call in bets under way and drop others, until all are placed for whom there is room.

        What is on its way and the host may compute instead is called in later.
        """
        table = self.residency
        if status == Status.CALLED:
            for expert in table.called:
                coming[keys[expert]] = self._ticket(keys[expert])
                if self._host is None:
                    table.call_in(expert)
            status = table.place()
        while status == Status.SHORT:
            status = table.place(skip=not self._drop_bet(keys[0].layer, coming))

    def _ticket(self, key: ExpertKey) -> Ticket:
        """Of a staged expert."""
        slot = self.residency.slot_of(key)
        assert slot is not None
        return self._tickets[slot]

    def _drop_bet(self, layer: int, coming: Collection[ExpertKey]) -> bool:
        """Free a slot for the layer of the oldest bet that is none of `coming`, if there is one.

        One that is being written cannot be dropped.
        """
        for key in self.residency.oldest(layer):
            ticket = self._ticket(key)
            if key not in coming and (self.transfers.cancel(ticket) or ticket.state in ENDED):
                self.residency.drop(key)
                return True
        return False
