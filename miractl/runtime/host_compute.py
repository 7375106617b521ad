"""Which missing experts the host computes while others are copied to the device."""

from collections.abc import Mapping, Sequence

from miractl.native.residency import State
from miractl.policy.keys import ExpertKey
from miractl.policy.placement import Missing, Place, Rates, place
from miractl.runtime.ticket import Ticket
from miractl.runtime.transfer import Transfers

MODES = ("auto", "on", "off")


class HostCompute:
    """Decides for the missing experts of a step, by times that are measured as they come."""

    def __init__(self, transfers: Transfers, is_always: bool = False) -> None:
        """`is_always`: every missing expert is computed on the host, whatever it costs."""
        self.rates, self._transfers, self._is_always = Rates(), transfers, is_always

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

    def computed(self, experts: Sequence[int], tokens: Mapping[int, int], seconds: float) -> None:
        """The host has computed these experts of a layer in so many seconds."""
        self.rates.computed(len(experts), sum(tokens[expert] for expert in experts), seconds)
