"""Which missing experts the host computes while others are copied to the device.

What an expert takes here is known from hits where the device is this host behind an emulated link.
Beside a GPU it has to be tried: a missing expert goes to the host at the start, with many tokens of
a prompt and then with one, and again when the host has not computed for long.
"""

from collections.abc import Mapping, Sequence

from miractl.native.residency import State
from miractl.policy.keys import ExpertKey
from miractl.policy.placement import Missing, Place, Rates, place
from miractl.runtime.ticket import Ticket
from miractl.runtime.transfer import Transfers

MODES = ("auto", "on", "off")
WARM_UP = 1  # tries at the start that are not counted: code and threads are woken by them
RETRY = 512  # steps of a layer with missing experts, after which the host is tried again


class HostCompute:
    """Decides for the missing experts of a step, by times that are measured as they come."""

    def __init__(
        self, transfers: Transfers, is_always: bool = False, is_beside: bool = False
    ) -> None:
        """`is_always`: every missing expert is computed on the host, whatever it costs.

        `is_beside`: another processor computes hits; what these take says nothing of the host.
        """
        self.rates, self._transfers, self._is_always = Rates(), transfers, is_always
        self._is_beside = is_beside
        self._tried, self._idle = 0, 0  # times, and steps since the last

    def choose(
        self,
        absent: Sequence[ExpertKey],
        coming: Mapping[ExpertKey, Ticket],
        tokens: Mapping[int, int],
        now: float,
    ) -> set[ExpertKey]:
        """Those that the host computes, of experts that are absent or on their way.

        `tokens` of each expert of the layer; `now` on the clock of the transfers.
        """
        if self._is_always:
            return {*absent, *coming}
        if not absent and not coming:
            return set()
        self._idle += 1
        if self._is_beside and absent:
            least = min(absent, key=lambda key: tokens[key.expert])
            if self._is_due(tokens[least.expert]):
                return {least}
        each, backlog = self._transfers.seconds_each, self._transfers.backlog
        self.rates.copy = each or None
        missing = [Missing(key, tokens[key.expert]) for key in absent]
        for key, ticket in coming.items():
            passed = ticket.passed if ticket.state is State.PAUSED else 0.0
            arrives = backlog + each - passed
            if ticket.state is State.RUNNING:
                arrives = max(0.0, ticket.began_at + each - now)
            missing.append(Missing(key, tokens[key.expert], arrives))
        chosen = place(missing, backlog, self.rates)
        return {key for key, where in chosen.items() if where is Place.HOST}

    def _is_due(self, tokens: int) -> bool:
        """Whether the host is to be tried on an expert with so many tokens."""
        is_better = tokens == 1 and self.rates.is_rough
        return self._tried <= WARM_UP or self._idle > RETRY or is_better

    def hit(self, experts: Sequence[int], tokens: Mapping[int, int], seconds: float) -> None:
        """The device has computed these experts of a layer in so many seconds."""
        if not self._is_beside:
            self.computed(experts, tokens, seconds)

    def computed(self, experts: Sequence[int], tokens: Mapping[int, int], seconds: float) -> None:
        """The host has computed these experts of a layer in so many seconds."""
        self._idle = 0
        if self._is_beside and self._tried <= WARM_UP:
            self._tried += 1
            if self._tried <= WARM_UP:
                return
        self.rates.computed(len(experts), sum(tokens[expert] for expert in experts), seconds)
