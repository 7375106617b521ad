"""A recorded run decided once more, by the objects that decided it: cache, bets, brain, table.

Routing, times, what the link did and what look-ahead guessed come from the recording. Which experts
are kept, which are bet on, called in or given up, is decided anew, and counted anew.
"""

from typing import TYPE_CHECKING

from miractl import units
from miractl.errors import MiractlError, UsageError
from miractl.native.library import available
from miractl.native.replay import Routing
from miractl.policy.brain import Brain
from miractl.policy.guessing import MODES, make_predictor
from miractl.policy.heat import heat_for
from miractl.policy.registry import ONLINE, make_policy
from miractl.policy.routing import Routed
from miractl.policy.slots import make_slots
from miractl.runtime.cache import ExpertCache
from miractl.runtime.host_compute import HostCompute
from miractl.runtime.prefetch import Prefetcher
from miractl.runtime.recording import totals
from miractl.runtime.tape import Kind, PartedError, ReadTape, TapedClock, TapedGuesses
from miractl.runtime.taped_link import TapedLink
from miractl.simulate.driving import Clock, steps_of
from miractl.simulate.study import routing_of
from miractl.telemetry.trace import Trace

if TYPE_CHECKING:
    from miractl.policy.prediction import Predictor


def why_not(trace: Trace) -> str | None:
    """Why the run cannot be decided once more; None if it can."""
    served = trace.served
    if trace.lost is not None:
        return f"not all of the run was recorded: {trace.lost}"
    if trace.tape is not None and trace.slots is None:
        return "experts of several shapes have slots of their own"
    needed = trace.tape, served, trace.counts, trace.slots, trace.gate_seconds, trace.rows
    if any(part is None for part in needed):
        return "recorded without what decisions were told"
    assert served is not None
    if served.warm:
        return "the server had learned from earlier runs (--warm-heat)"
    if served.policy not in ONLINE:
        return f"policy {served.policy} is not known here"
    if not available():
        return "miractl was built without its library"
    return None


def rerun(trace: Trace) -> dict[str, int]:
    """What the run comes to, by the names of `miractl.telemetry.served.COUNTS`.

    Raises UsageError where `why_not` has a reason, MiractlError if other decisions are made than
    in the recording.
    """
    if (reason := why_not(trace)) is not None:
        raise UsageError(f"trace {trace.name}: {reason}")
    run = _Run(trace, routing_of(trace))
    try:
        run.begin()
        for seconds, layers in steps_of(trace, run.routing):
            for routed, known in zip(layers, seconds or (), strict=True):
                run.layer(routed, known)
        if not run.tape.is_over:
            raise PartedError("the recording goes on")
    except (PartedError, ValueError) as parted:
        steps = units.counted(run.steps, "step")
        raise MiractlError(
            f"trace {trace.name}: after {steps} other decisions than recorded: {parted}",
            hint="replay it with the miractl that recorded it",
        ) from None
    finally:
        run.brain.close()
    return totals(run.cache)


class _Run:
    """What an engine decides with, on a tape."""

    def __init__(self, trace: Trace, routing: Routing) -> None:
        served, slots = trace.served, trace.slots
        assert served is not None
        assert slots is not None
        self.routing, self.tape = routing, ReadTape(trace.tape_numbers())
        sizes = routing.layers, routing.experts, routing.top
        told = TapedClock(self.tape)
        self._known = Clock()
        self._told = told
        heat = heat_for(*sizes, served.parameters, self._now)
        each = sum(slots[1]) / routing.layers
        self.brain = Brain(make_policy(served.policy, routing.top, each, heat), heat)
        link = TapedLink(self.tape, told, served.chunks)
        host = None
        if served.host not in (None, "off"):
            host = HostCompute(link, served.host == "on", served.beside)
        self.cache = ExpertCache(
            make_slots(slots[0], served.ways, served.staged, self.brain),
            *(link, told),
            host=host,
        )
        self.steps = 0  # that are through
        self._served, self._sizes = served, sizes

    def begin(self) -> None:
        """The clock is read for the first time."""
        mode, values = self._served.prediction, self._served.parameters
        if mode is None:
            return
        predictor: Predictor
        if mode in MODES:
            predictor = make_predictor(mode, *self._sizes, values)
        else:
            predictor = TapedGuesses(self.tape, mode, self._sizes[1])
        Prefetcher(  # by which the cache bets from now on
            *(self.cache, predictor),
            confidence=values["prediction_confidence"],
            horizon=int(values["prediction_horizon"]),
            clock=self._told,
        )

    def _now(self) -> float:
        return max(self._known.now, self._told.last)

    def layer(self, routed: Routed, known: float) -> None:
        """As LayerRuns does it, but for the computing."""
        self._known.now = known
        layer, limit = self.tape.take(Kind.LAYER, list)
        if layer != routed.layer:
            raise PartedError(f"layer {routed.layer}, was {layer}")
        for _, part, _ in self.cache.parts(routed, None, limit):
            for _ in self.cache.serve(part):
                pass
        self.steps += routed.layer == self.routing.layers - 1
