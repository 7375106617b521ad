"""What the host takes of a step: misses that it computes, and copies that go on for later."""

from collections import Counter
from collections.abc import Callable, Sequence

from miractl.native.residency import Pairs, State
from miractl.policy.keys import ExpertKey
from miractl.policy.routing import Routed
from miractl.policy.slots import SlotTable
from miractl.runtime.host_compute import HostCompute
from miractl.runtime.ticket import BACKGROUND, UNDER_WAY, Ticket
from miractl.runtime.transfer import Transfers

FILLS = 4  # experts at most that are copied for later, once the host has computed them


class HostSide:
    """The host beside one table. The caller holds the table's lock."""

    def __init__(
        self,
        host: HostCompute,
        table: SlotTable,
        transfers: Transfers,
        clock: Callable[[], float],
    ) -> None:
        self._host, self._table, self._transfers, self._clock = host, table, transfers, clock
        self._filling: dict[ExpertKey, Ticket] = {}  # residents whose bytes are on their way
        self._tokens: Counter[int] = Counter()  # of each expert of the step
        self.left: list[int] = []  # experts of the wave that the host computes

    def coming(
        self, step: Routed, keys: Sequence[ExpertKey], here: Pairs
    ) -> dict[ExpertKey, Ticket]:
        """A wave begins: take out of `here` residents whose bytes are still on their way."""
        self._tokens = Counter(step.ids.reshape(-1).tolist())
        coming: dict[ExpertKey, Ticket] = {}
        for pair in list(here):
            key = keys[pair[0]]
            ticket = self._filling.pop(key, None)
            if ticket is None:
                continue
            if ticket.state not in UNDER_WAY:
                self._end_fill(ticket)
                continue
            coming[key] = ticket
            here.remove(pair)
            self._table.hits[key] -= 1
            self._table.misses[key] += 1
        return coming

    def leave(
        self, keys: Sequence[ExpertKey], placed: Pairs, coming: dict[ExpertKey, Ticket]
    ) -> Pairs:
        """Choose whom the host computes, `left`, also of those that are `coming`.

        Returns those that are copied at once. Of what is left copies under way go on, and some of
        those that have come to stay are copied for later, behind everything else.
        """
        self.drop_fills()
        table = self._table
        absent = [keys[expert] for expert in (*(e for e, _ in placed), *table.waiting)]
        chosen = self._host.choose(absent, coming, self._tokens, self._clock())
        for key in chosen & coming.keys():
            ticket = coming.pop(key)
            if not table.is_staged(key):
                self._filling[key] = ticket
            elif self._transfers.cancel(ticket):
                table.drop(key)
        left = {key.expert for key in chosen}
        table.dismiss(left)
        for expert, slot in placed:
            if expert in left:
                self._fill(keys[expert], slot)
        self.left = sorted(left)
        return [pair for pair in placed if pair[0] not in left]

    def hit(self, experts: Sequence[int], seconds: float) -> None:
        """These experts of the step were computed on the device in so many seconds."""
        self._host.hit(experts, self._tokens, seconds)

    def computed(self, experts: Sequence[int], seconds: float) -> None:
        """These experts of the step were computed on the host in so many seconds."""
        self._host.computed(experts, self._tokens, seconds)

    def drop_fills(self) -> None:
        """End the copies of residents that had to go, before somebody else gets their slots."""
        for key, ticket in list(self._filling.items()):
            if self._table.slot_of(key) == ticket.slot:
                continue
            del self._filling[key]
            if not self._transfers.abandon(ticket):
                self._transfers.finish(ticket)

    def _end_fill(self, ticket: Ticket) -> None:
        """Raises what kept the bytes, after which the expert is in no slot."""
        try:
            self._transfers.wait(ticket)
        except BaseException:
            self._table.release(ticket.key)
            raise

    def _fill(self, key: ExpertKey, slot: int) -> None:
        for done in [k for k, t in self._filling.items() if t.state is State.DONE]:
            self._transfers.wait(self._filling.pop(done))
        if len(self._filling) < FILLS and self._table.is_resident(key):
            self._filling[key] = self._transfers.submit(key, slot, BACKGROUND)
        else:
            self._table.release(key)
