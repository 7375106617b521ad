"""Where a missing expert is computed: on the device after a copy, or on the host where it lies.

The link and the host's processors work at the same time, each on one expert after the other, so the
step is over when the later of the two is. An expert costs the link the same for one token and for
many; the host it costs by the token. The split is greedy: whoever has the most tokens chooses
first, and goes where it is done sooner. That is never worse than one place for all.

Rates are measured, not assumed; until both are known nothing is computed on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from miractl.policy.keys import ExpertKey

EWMA = 0.1  # weight of the newest measurement


class Place(Enum):
    """What happens to a missing expert."""

    WAIT = "wait"  # its copy is under way
    COPY = "copy"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Missing:
    """An expert of the step that is not in a slot. `arrives` in seconds, if a copy is under way."""

    key: ExpertKey
    tokens: int
    arrives: float | None = None


class Rates:
    """Seconds that copying and host computing take, followed as they are measured."""

    def __init__(self) -> None:
        self.copy: float | None = None  # one expert over an idle link
        self.host_expert: float | None = None  # one expert with one token on the host
        self.host_token: float = 0.0  # each further token of it
        self.is_rough = True  # whether the expert has not been measured with one token yet

    def copied(self, seconds: float) -> None:
        """One expert was copied, without waiting for others."""
        self.copy = _follow(self.copy, seconds)

    def computed(self, experts: int, tokens: int, seconds: float) -> None:
        """The host computed so many experts on so many (token, expert) pairs in all.

        One token an expert measures the expert; more measure the tokens beyond.
        """
        if tokens == experts:
            known = None if self.is_rough else self.host_expert
            self.host_expert, self.is_rough = _follow(known, seconds / experts), False
        elif self.host_expert is not None and not self.is_rough:
            further = max(0.0, seconds - experts * self.host_expert) / (tokens - experts)
            self.host_token = _follow(self.host_token or None, further)
        else:  # nothing better is known yet: as if all of it were the expert's
            self.host_expert = seconds / experts

    def host(self, tokens: int) -> float | None:
        """One expert on so many tokens."""
        if self.host_expert is None:
            return None
        return self.host_expert + (tokens - 1) * self.host_token


def place(
    missing: Sequence[Missing], backlog: float, rates: Rates, host_allowed: bool = True
) -> dict[ExpertKey, Place]:
    """Decide for all missing experts of a step; `backlog` is what the link has queued, seconds."""
    link, host = backlog, 0.0
    chosen: dict[ExpertKey, Place] = {}
    for expert in sorted(missing, key=lambda m: (m.arrives is None, -m.tokens, m.key)):
        here = rates.host(expert.tokens) if host_allowed else None
        if expert.arrives is not None:
            # Its copy is paid for: it is computed here only if that is over before it arrives.
            sooner = here is not None and host + here < expert.arrives
            chosen[expert.key] = Place.HOST if sooner else Place.WAIT
        elif here is None or rates.copy is None or link + rates.copy <= host + here:
            chosen[expert.key] = Place.COPY
            link += rates.copy or 0.0
        else:
            chosen[expert.key] = Place.HOST
        if chosen[expert.key] is Place.HOST and here is not None:
            host += here
    return chosen


def _follow(old: float | None, new: float) -> float:
    return new if old is None else old + EWMA * (new - old)
