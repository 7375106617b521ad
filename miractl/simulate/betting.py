"""The gate of bets in Python: the same decisions to the last bit as the C code, slowly.

The oracle of its tests, and its description: read it beside miractl/native/src/bets.c.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from miractl.native.ahead import PRIZE
from miractl.native.bets import BetsState, Floats, Moment
from miractl.native.deciding import Known
from miractl.native.predictor import BINS
from miractl.policy.routing import Routed
from miractl.policy.staged import StagedResidency, overrun

Flags = npt.NDArray[np.uint8]  # [experts]

LEAST, TRUSTED, MOST_GUESSES = 1e-4, 10.0, 1024
DEMAND_RATE, WORTH_RATE, WORTH_ON, CREDIT = 0.02, 0.005, 0.05, 50.0
LAYERS_AHEAD = 12
RATE = 0.05  # of the averages of a runtime, a layer's step
PRIZE_RATE = 0.02


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a transfer may save and cost: a sure delay of layers between, one if it is in vain."""

    hidden: float
    risk: float = 0.0
    sure_cost: float = 0.0
    vain_cost: float = 0.0


def within(p: float) -> float:
    """No guess is surer than LEAST, nor than 1 - LEAST."""
    return min(p, 1 - LEAST) if p >= LEAST else LEAST


def _is_candidate(p: Floats, expert: int, confidence: float) -> bool:
    """Whether it is among the likeliest whose share of all guesses is `confidence`."""
    everybody = before = 0.0
    for other in p.tolist():
        everybody += other
        before += other if other > p[expert] else 0.0
    return before < confidence * everybody


class ReferenceBets:
    """Chooses and judges as `miractl.native.bets.Bets` does, on a state of its own."""

    def __init__(self, state: BetsState) -> None:
        self.state = state

    def calibrated(self, guess: float, kind: int = 0) -> float:
        """The probability that the record of a class makes of a guess."""
        held, failed = self._chances(guess, kind)
        return held / (held + failed)

    def _chances(self, guess: float, kind: int) -> tuple[float, float]:
        """How likely it is to hold, and to fail, times something."""
        p = within(guess)
        made, said, came = self.state.bins[kind, :, int(p * BINS)].tolist()
        mean = said / made if made > 0 else p
        true = within((came + TRUSTED * mean) / (made + TRUSTED))
        return p * (true * (1 - mean)), (1 - p) * (mean * (1 - true))

    def _likely(self, guess: float, kind: int) -> float:
        """The probability if a bet pays where it delays nobody, else -1."""
        held, failed = self._chances(guess, kind)
        return held / (held + failed) if held > self.state.price * failed else -1.0

    def choose(self, at: Moment, guesses: npt.NDArray[Any], there: Flags) -> list[int]:
        """Experts to bet on, likeliest first; moves `at` on unless bets are off."""
        s = self.state
        p = guesses.astype(np.float32)
        s.guess[at.kind, at.layer] = np.where(there, -1, p)
        sure = [
            -1.0 if here else self._likely(float(guess), at.kind)
            for guess, here in zip(p, there, strict=True)
        ]
        s.proposal[at.layer] = -1
        chosen: list[int] = []
        link, promised, saved = at.link, at.promised, 0.0
        while len(chosen) < min(max(0, at.room), s.most) and at.transfer > 0:
            expert = int(np.argmax(sure))
            chance = sure[expert]
            if chance < 0 or not _is_candidate(p, expert, at.confidence):
                break
            found = self._look(at, link)
            hidden = min(found.hidden, at.stall - saved)
            cost = found.sure_cost + (1 - chance) * (found.vain_cost + s.price * at.transfer)
            bearable = promised + found.risk <= s.balance + s.allowance * at.elapsed
            if hidden <= 0 or chance * hidden <= cost or not bearable:
                s.withheld += 1
                break
            place = at.layer, len(chosen)
            s.proposal[place], s.hidden[place], s.risk[place] = expert, hidden, found.risk
            sure[expert] = -1.0
            chosen.append(expert)
            saved += chance * hidden
            link += at.transfer
            promised += found.risk
        if s.off:
            s.withheld += len(chosen)
            return []
        at.link, at.promised = link, promised
        return chosen

    def judge(self, layer: int, wanted: Sequence[int], fetch: bool, transfer: float) -> None:
        """Learn from a routed layer."""
        s = self.state
        for kind in range(s.classes):
            self._judge_guesses(kind, layer, wanted)
        s.demand[layer] += DEMAND_RATE * (fetch - s.demand[layer])
        for at, expert in enumerate(s.proposal[layer].tolist()):
            if expert < 0 or transfer <= 0:
                break
            value = -s.price - (float(s.risk[layer, at]) / transfer if fetch else 0)
            if expert in wanted:
                value = float(s.hidden[layer, at]) / transfer
            s.worth += WORTH_RATE * (value - s.worth)
            s.proposal[layer, at] = -1
        off = int(s.worth < (WORTH_ON if s.off else 0))
        s.switches += off != s.off
        s.off = off

    def account(self, gained: float, lost: float, transfer: float) -> None:
        """Enter time gained and lost into the ledger."""
        s = self.state
        s.balance += gained - lost
        s.balance = min(s.balance, CREDIT * transfer)

    def _judge_guesses(self, kind: int, layer: int, wanted: Sequence[int]) -> None:
        guesses = self.state.guess[kind, layer]
        for expert in np.flatnonzero(guesses >= 0).tolist():
            p = within(float(guesses[expert]))
            bins = self.state.bins[kind, :, int(p * BINS)]
            bins += (1, p, expert in wanted)
            if bins[0] >= MOST_GUESSES:
                bins *= 0.5
        guesses[:] = -1

    def _look(self, at: Moment, link: float) -> Prospect:
        due = at.gate + (at.ahead - 1) * at.compute
        if due - link <= 0:
            return Prospect(due - link)
        demand, layers = self.state.demand, self.state.layers
        risk = sure_cost = 0.0
        for between in range(at.ahead - 1):
            gate = at.gate + between * at.compute
            if link < gate:
                over = overrun(gate - link, at.transfer, self.state.chunks)
                layer = (at.layer - at.ahead + 1 + between + layers) % layers
                sure_cost += float(demand[layer]) * over
                risk = max(risk, over)
        over = overrun(due - link, at.transfer, self.state.chunks)
        vain = self._delay(at.layer, over, at.compute)
        return Prospect(min(due - link, at.transfer), max(risk, over), sure_cost, vain)

    def _delay(self, layer: int, over: float, compute: float) -> float:
        """Time that demands are expected to wait for a transfer in vain."""
        cost, idle = 0.0, 1.0
        for later in range(LAYERS_AHEAD):
            if over <= 0:
                break
            demand = float(self.state.demand[(layer + later) % self.state.layers])
            cost += idle * demand * over
            idle *= 1 - demand
            over -= compute
        return cost


class Pace:
    """Seconds from the routing of a layer to that of the next, waiting left out, by layer.

    Prompts have a pace of their own: theirs follows the number of tokens.
    """

    def __init__(self, layers: int) -> None:
        self._seconds: dict[bool, list[float | None]] = {
            prompt: [None] * layers for prompt in (False, True)
        }
        self._last: tuple[int, float, float] | None = None

    def mark(self, layer: int, now: float, waited: float, prompt: bool) -> None:
        """A layer is routed; `waited` seconds in all have been spent on transfers so far."""
        last, self._last = self._last, (layer, now, waited)
        if last is None or last[0] != layer - 1:
            return
        seconds, old = max(0.0, now - last[1] - (waited - last[2])), self._seconds[prompt][layer]
        self._seconds[prompt][layer] = seconds if old is None else old + RATE * (seconds - old)

    def until(self, layer: int, prompt: bool) -> float | None:
        """Seconds from the layer before to this one; None while that is not known."""
        return self._seconds[prompt][layer]


class Overlap:
    """What copies cost, as far as computing does not hide them, for single tokens and prompts."""

    def __init__(self) -> None:
        self._each: list[float | None] = [None, None]  # seconds that an expert computes
        self._stall = [0.0, 0.0]

    def computed(self, seconds: float, experts: int, prompt: bool) -> None:
        """So many experts of a layer were there, and took so long."""
        if experts > 0:
            old, new = self._each[prompt], seconds / experts
            self._each[prompt] = new if old is None else old + RATE * (new - old)

    def each(self, prompt: bool) -> float:
        """Seconds that an expert computes; 0 while that is not known: then nothing is hidden."""
        return self._each[prompt] or 0.0

    def waits(self, stall: float, prompt: bool) -> float:
        """A layer would wait for so many seconds without bets; the average."""
        self._stall[prompt] += RATE * (stall - self._stall[prompt])
        return self._stall[prompt]


class ReferenceAhead:
    """Settles and places as `miractl.native.ahead.Ahead` does, on a table in Python."""

    def __init__(
        self,
        bets: ReferenceBets,
        table: StagedResidency,
        horizon: int,
        confidence: float,
        began: float,
    ) -> None:
        self.bets, self.table, self.prize, self._stall = bets, table, 0.0, 0.0
        self._prizes, self._tried = [PRIZE, PRIZE], False
        self.pace, self.overlap = Pace(bets.state.layers), Overlap()
        self._layer, self._prompt, self._now = 0, False, 0.0
        self._horizon, self._began, self._at = horizon, began, Moment(confidence=confidence)
        self._demands = self._under_way = 0

    def settle(self, step: Routed, known: Known) -> list[int]:
        """Judge and account what became of the bets on a layer; those that are to be cancelled."""
        now, waited, transfer, spent, computed = known
        layer, ids = step.layer, step.ids
        self.overlap.computed(spent, computed, self._prompt)
        self._layer, self._prompt = layer, len(ids) > len(step.segments)
        self.pace.mark(layer, now, waited, self._prompt)
        each = self.overlap.each(self._prompt)
        chunks = self.bets.state.chunks
        found = self.table.judge_bets(layer, ids, now, transfer, each, chunks)
        if transfer > 0:
            self.bets.judge(layer, np.unique(ids).tolist(), found.missing > 0, transfer)
            self.bets.account(found.gained, found.lost, transfer)
        self._stall = self.overlap.waits(found.stall, self._prompt)
        before = self._prizes[self._prompt]
        if self._tried:
            self._prizes[self._prompt] += PRIZE_RATE * (found.gained - found.lost - before)
        self._tried = False
        self.prize = min(self._stall, self._prizes[self._prompt])
        return found.unwanted

    def begin(self, now: float, transfer: float, demands: int, under_way: int) -> None:
        """What is known before bets are placed."""
        self._now, self._at.transfer = now, transfer
        self._demands, self._under_way = demands, under_way

    def place(self, ahead: int, guesses: npt.NDArray[Any]) -> list[list[int]]:
        """Bet on the layer so many ahead of the present one."""
        at, table = self._at, self.table
        is_last = self._layer + ahead >= self.bets.state.layers
        compute = None if is_last else self.pace.until(self._layer + 1, self._prompt)
        if compute is None:
            return []
        if ahead == 1:
            at.elapsed, at.promised = self._now - self._began, 0.0
            at.link = (self._demands + self._under_way) * at.transfer
            at.gate = self._demands * at.transfer + compute
            at.compute, at.stall = compute, self._stall
        at.layer, at.ahead = self._layer + ahead, ahead
        at.kind = ahead - 1 + (self._horizon if self._prompt else 0)
        at.room = table.room_for_bets
        self._tried = at.transfer > 0
        return table.bet(at.layer, self.bets.choose(at, guesses, table.present(at.layer)))
