"""The link in time, in Python: the same course as the C code, slowly. The oracle of its tests."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from miractl.native.bets import Course, Floats, Link, Moment
from miractl.native.replay import Outcome, Routing
from miractl.simulate.betting import Flags, ReferenceBets


@dataclass(slots=True)
class Bet:
    """A transfer on a bet: `left` seconds of it, the end of its last chunk in `arrives`."""

    step: int
    expert: int
    left: float
    arrives: float = 0.0


@dataclass
class Play:
    """One run. At `now` the present step is routed, at `free` the link is free."""

    routing: Routing
    outcome: Outcome
    guesses: Floats  # [horizon, steps, experts]
    link: Link
    bets: ReferenceBets
    now: float = 0.0
    free: float = 0.0
    open: list[Bet] = field(default_factory=list)  # in order of transfer
    total: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(Course.__slots__, 0))

    def run(self) -> Course:
        """Play all steps."""
        link = self.link
        steps = self.routing.tokens * self.routing.layers
        self.ids = self.routing.ids.reshape(steps, -1)
        self.hits = self.outcome.hits.reshape(steps, -1)
        assert self.outcome.resident is not None
        self.resident = self.outcome.resident.reshape(steps, -1)
        self.now = link.routed * link.compute
        for step in range(steps):
            wait = self._settle(step)
            gate = wait + link.compute
            self.total["seconds"] += link.compute + wait
            self.free = max(self.free, self.now)
            self._bet(step, gate)
            self._work(self.now + gate)
            self.now += gate
        return Course(**self.total)

    def _settle(self, step: int) -> float:
        """Close the bets on this step, demand the rest; returns how long it waits."""
        hits, ids = self.hits[step], self.ids[step].tolist()
        missing = {expert for expert, hit in zip(ids, hits, strict=True) if not hit}
        wanted = np.zeros(self.routing.experts, np.uint8)
        wanted[ids] = 1
        transfer = self.link.transfer
        self.bets.judge(step % self.routing.layers, ids, bool(missing), transfer)
        behind = max(0.0, self.free - self.now)
        needed, gained, ours = self._close(step, wanted, behind)
        for _ in missing - {bet.expert for bet in self.closed}:
            needed += transfer
            self.total["moved"] += transfer
            self.total["demands"] += 1
        wait = behind + needed if needed > 0 or ours else 0.0
        self.bets.account(gained, behind if wait > 0 and not ours else 0.0, transfer)
        if wait > 0:
            self.free = self.now + wait
        self.total["stall"] += wait
        return wait

    def _close(self, step: int, wanted: Flags, behind: float) -> tuple[float, float, bool]:
        """Close the bets on this step.

        Returns the seconds of transfers still needed, those gained, and whether the chunk that the
        link is at, for `behind` more, is of an expert that is needed.
        """
        needed = gained = 0.0
        ours, kept = False, []
        self.closed: list[Bet] = []
        for bet in self.open:
            moved, under_way = self.link.transfer - bet.left, bet.arrives > self.now
            if bet.step != step and moved > 0:
                kept.append(bet)
            elif bet.step != step:
                self.total["cancelled"] += 1
            elif not wanted[bet.expert]:
                self.total["wasted" if moved > 0 else "cancelled"] += 1
                self.total["wasted_seconds"] += moved
            else:
                self.closed.append(bet)
                needed += bet.left
                self.total["moved"] += bet.left
                gained += moved - (behind if under_way else 0)
                ours |= under_way
                late = bet.left > 0 or under_way
                self.total["cancelled" if moved <= 0 else "late" if late else "used"] += 1
        self.open = kept
        return needed, gained, ours

    def _bet(self, step: int, gate: float) -> None:
        routing, link = self.routing, self.link
        pending = max(0.0, self.free - self.now)
        for bet in self.open:
            pending += bet.left
        promised = 0.0
        for ahead in range(1, link.horizon + 1):
            target = step + ahead
            if target >= len(self.ids):
                break
            there = self.resident[target].copy()
            there[[bet.expert for bet in self.open if bet.step == target]] = 1
            at = Moment(
                layer=target % routing.layers,
                room=self.bets.state.most - len(self.open),
                elapsed=self.now,
                link=pending,
                gate=gate,
                transfer=link.transfer,
                compute=link.compute,
                ahead=ahead,
                kind=ahead - 1,
                promised=promised,
                confidence=link.confidence,
            )
            found = self.bets.choose(at, self.guesses[ahead - 1, target], there)
            pending, promised = at.link, at.promised
            self.total["issued"] += len(found)
            self.open += [Bet(target, expert, link.transfer) for expert in found]

    def _work(self, until: float) -> None:
        """Move bets until somebody else wants the link; a chunk begun is finished."""
        transfer = self.link.transfer
        chunk = transfer / self.bets.state.chunks
        for bet in self.open:
            if self.free >= until:
                break
            if bet.left <= 0:
                continue
            amount = bet.left
            if self.free + amount > until:
                done = transfer - bet.left
                border = math.ceil((done + until - self.free) / chunk - 1e-9) * chunk - done
                amount = min(border, amount)
            bet.left -= amount
            if bet.left < 1e-12 * transfer:
                bet.left = 0.0
            self.free += amount
            bet.arrives = self.free
            self.total["moved"] += amount


def play(
    routing: Routing, outcome: Outcome, guesses: Floats, link: Link, bets: ReferenceBets
) -> Course:
    """As `miractl.native.bets.run_timeline`."""
    steps = routing.tokens * routing.layers
    return Play(routing, outcome, guesses.reshape(len(guesses), steps, -1), link, bets).run()
