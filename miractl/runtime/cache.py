"""The expert cache: puts the brain's decisions into effect and counts what came of them.

One step of one layer at a time (the caller holds the layer lock); bets run beside it. The lock here
guards the slot table and the counters and is never held while bytes move or experts compute.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from miractl.native.residency import Pairs, State, Status
from miractl.policy.keys import ExpertKey
from miractl.policy.prediction import Probabilities
from miractl.policy.routing import Routed
from miractl.policy.slots import SlotTable
from miractl.runtime.counters import Counters, SwitchTimes
from miractl.runtime.host_compute import HostCompute
from miractl.runtime.ticket import BACKGROUND, ENDED, UNDER_WAY, Ticket
from miractl.runtime.transfer import Transfers

NOWHERE = -1  # slot of an expert that is computed on the host, where it lies
FILLS = 4  # experts at most that are copied for later, once the host has computed them
NOBODY: Sequence[int] = ()
NONE: Mapping[int, int] = {}
DONE = State.DONE  # looked up once


class ExpertCache:
    """Slots, transfers and counters of all experts."""

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
        self._counters, self.switches = Counters(), SwitchTimes()
        self.lock = threading.Lock()
        self._clock, self._punch = clock, punch
        layers, experts = residency.hits.shape
        self._keys = [[ExpertKey(layer, e) for e in range(experts)] for layer in range(layers)]
        self._tickets: dict[int, Ticket] = {}  # of staged experts, by slot
        self.spent, self.computed = 0.0, 0  # seconds that the hits of the last wave took; how many
        self.lost: dict[int, Exception] = {}  # experts of the last step that could not be brought
        self._host = host
        self._filling: dict[ExpertKey, Ticket] = {}  # residents whose bytes are on their way

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
        keys, progress, tickets = self._keys[layer], self.residency.progress, self._tickets
        submit, guess = self.transfers.submit, guesses.item
        for expert, slot in bets:
            tickets[slot] = submit(keys[expert], slot, 1 - guess(expert), progress)

    def cancel_bets(self, layer: int, experts: Iterable[int]) -> None:
        """End bets on a layer, at once or where they can be left. The caller holds the lock."""
        for expert in experts:
            key = self._keys[layer][expert]
            if self.transfers.abandon(self._ticket(key)):
                self.residency.drop(key)

    def serve(self, step: Routed, then: Callable[[], None] | None = None) -> Iterator[Pairs]:
        """Yield (expert, slot) for each expert of the step, in groups, as soon as they are there.

        Hits come first, so that they are computed while the misses are on their way; next what the
        host computes, with NOWHERE for a slot; then the other misses, together what has arrived. A
        group's slots are good until the next one is asked for. `then` is called when all demands
        are on their way. What a transfer raises is kept in `lost`: the slot yielded for its expert
        has anything in it.
        """
        table, host, clock, punch = self.residency, self._host, self._clock, self._punch
        if self.lost:
            self.lost = {}
        tokens = NONE if host is None else Counter(step.ids.reshape(-1).tolist())
        self.computed, asked = 0, clock()
        self.transfers.poll()
        with self.lock:
            here, left, waiting = self._find(step, tokens, table.ask(step))
        if then is not None:
            then()
        while True:
            try:
                if here:
                    punch("hits")
                    began = clock()
                    yield here
                    self.spent, self.computed = clock() - began, len(here)
                    if host is not None:
                        host.computed([e for e, _ in here], tokens, self.spent)
                if left and host is not None:
                    punch("misses")
                    began = clock()
                    yield [[expert, NOWHERE] for expert in left]
                    host.computed(left, tokens, clock() - began)
                while waiting:
                    punch("waiting")
                    arrived, waiting = self._arrived(waiting, asked)
                    punch("misses")
                    yield [[ticket.key.expert, ticket.slot] for ticket in arrived]
                    if self.lost:
                        self._forget(arrived)
            except BaseException:  # the generator was closed, or a transfer failed
                self._abandon(waiting)
                raise
            finally:
                if table.passing:
                    with self.lock:
                        table.end_transit()
            if not table.waits:
                break
            punch("decide")
            asked = clock()
            self.transfers.poll()
            with self.lock:
                self._counters.waves += 1
                here, left, waiting = self._find(step, tokens, table.ask_again())
        punch("sum")

    def _arrived(self, waiting: list[Ticket], asked: float) -> tuple[list[Ticket], list[Ticket]]:
        """Those of `waiting` whose bytes are there, at least one, and the rest.

        `asked` is the time of the demand.
        """
        self.transfers.poll()
        arrived = [ticket for ticket in waiting if ticket.state in ENDED]
        if not arrived:
            self._wait(waiting[0])
            arrived = [ticket for ticket in waiting if ticket.state in ENDED]
        for ticket in arrived:
            self._wait(ticket)
        with self.lock:
            self.switches.add([ticket.finished_at - asked for ticket in arrived])
        if len(arrived) == len(waiting):
            return arrived, []
        return arrived, [ticket for ticket in waiting if ticket not in arrived]

    def _wait(self, ticket: Ticket) -> None:
        try:
            self.transfers.wait(ticket)
        except Exception as error:
            self.lost[ticket.key.expert] = error

    def _find(
        self, step: Routed, tokens: Mapping[int, int], status: int
    ) -> tuple[Pairs, Sequence[int], list[Ticket]]:
        """Split a wave of a step: slots that are ready, what the host computes, transfers.

        The rest waits for another wave. `status` is the table's, which has been asked.
        """
        table, keys = self.residency, self._keys[step.layer]
        here, left = table.here, NOBODY
        coming: dict[ExpertKey, Ticket] = {}
        if table.arrived:
            for _, slot in here[-table.arrived :]:
                self.transfers.wait(self._tickets[slot])
        if self._filling:
            coming = self._filled(keys, here)
        if status:
            self._make_room(status, keys, coming)
        placed = table.placed
        if self._host is not None:
            self._drop_fills()
            placed, left = self._leave(keys, placed, coming, tokens)
        if coming:
            self._await(coming)
        waiting = [*coming.values()]
        if placed:
            self._counters.copied += len(placed)
            submit = self.transfers.submit
            waiting += [submit(keys[expert], slot) for expert, slot in placed]
        return here, left, waiting

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

    def _filled(self, keys: Sequence[ExpertKey], here: Pairs) -> dict[ExpertKey, Ticket]:
        """Take out of the residents those whose bytes are still on their way."""
        coming: dict[ExpertKey, Ticket] = {}
        for pair in list(here):
            key = keys[pair[0]]
            ticket = self._filling.pop(key, None)
            if ticket is None:
                continue
            if ticket.state not in UNDER_WAY:
                self.transfers.wait(ticket)
                continue
            coming[key] = ticket
            here.remove(pair)
            self.residency.hits[key] -= 1
            self.residency.misses[key] += 1
        return coming

    def _drop_fills(self) -> None:
        """End the copies of residents that had to go, before somebody else gets their slots."""
        for key, ticket in list(self._filling.items()):
            if self.residency.slot_of(key) == ticket.slot:
                continue
            del self._filling[key]
            if not self.transfers.abandon(ticket):
                self.transfers.finish(ticket)

    def _leave(
        self,
        keys: Sequence[ExpertKey],
        placed: Pairs,
        coming: dict[ExpertKey, Ticket],
        tokens: Mapping[int, int],
    ) -> tuple[Pairs, list[int]]:
        """What is still copied at once, and the experts that are left to the host.

        Of what is left, copies under way go on, and some of those that have come to stay are copied
        for later, behind everything else.
        """
        assert self._host is not None
        table, waiting = self.residency, self.residency.waiting
        absent = [keys[expert] for expert in (*(e for e, _ in placed), *waiting)]
        chosen = self._host.choose(absent, coming, tokens, self._clock())
        for key in chosen & coming.keys():
            ticket = coming.pop(key)
            if not table.is_staged(key):
                self._filling[key] = ticket
            elif self.transfers.cancel(ticket):
                table.drop(key)
        left = {key.expert for key in chosen}
        self._counters.on_host += len(left)
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

    def _abandon(self, tickets: Sequence[Ticket]) -> None:
        """A step ended early: forget the experts whose bytes did not arrive."""
        for ticket in tickets:
            if not self.transfers.abandon(ticket):
                self.transfers.finish(ticket)
        self._forget(tickets)

    def _forget(self, tickets: Sequence[Ticket]) -> None:
        """Experts whose bytes are not there, whatever the table thinks, are in no slot."""
        with self.lock:
            for ticket in tickets:
                if ticket.state is not DONE:
                    self.residency.release(ticket.key)

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
