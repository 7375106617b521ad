"""How fast at most: what one step must move or compute, over the rate of what moves it.

A roofline. Each resource alone would take so long; with everything overlapped the slowest decides,
with nothing overlapped all add up. Rates are measured or given, never guessed.
"""

from dataclasses import dataclass
from typing import Any

from miractl.plan.cache import HitRange
from miractl.plan.machine import PlanMachine, Quantity
from miractl.plan.needs import Needs


@dataclass(frozen=True, slots=True)
class Roof:
    """One resource and one step: work at the high and at the low hit rate, and the rate."""

    name: str
    low: float  # bytes or operations, at the high hit rate
    high: float
    rate: Quantity
    option: str  # that gives the rate
    what: str

    @property
    def seconds(self) -> tuple[float, float] | None:
        """From the high to the low hit rate; None while the rate is unknown and there is work."""
        if not self.high:
            return 0.0, 0.0
        if not self.rate.value:
            return None
        return self.low / self.rate.value, self.high / self.rate.value

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "resource": self.name,
            "work": [self.low, self.high],
            "what": self.what,
            "rate": self.rate.value,
            "rate_origin": self.rate.origin,
            "seconds": self.seconds,
            "option": self.option,
        }


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds of a decode step that gives every running request one token."""

    concurrency: int
    roofs: tuple[Roof, ...]
    assumptions: tuple[str, ...]

    @property
    def known(self) -> tuple[Roof, ...]:
        """Resources with work and a rate."""
        return tuple(roof for roof in self.roofs if roof.high and roof.seconds)

    @property
    def unknown(self) -> tuple[Roof, ...]:
        """Resources with work, but without a rate."""
        return tuple(roof for roof in self.roofs if roof.seconds is None)

    @property
    def binding(self) -> Roof | None:
        """The resource that takes longest, of those that are known."""
        return max(self.known, key=lambda roof: (roof.seconds or (0, 0))[1], default=None)

    @property
    def fastest(self) -> float | None:
        """Seconds of a step at best: all overlapped, the high hit rate. A bound from below."""
        return max((roof.seconds[0] for roof in self.known if roof.seconds), default=None)

    @property
    def slowest(self) -> float | None:
        """Seconds with nothing overlapped at the low hit rate; None where a copy has no rate.

        Without a rate for computing, computing counts as hidden behind the memory it reads.
        """
        open_ends = [roof for roof in self.unknown if roof.name != "computing"]
        if open_ends or not self.known:
            return None
        return sum(roof.seconds[1] for roof in self.known if roof.seconds)

    @property
    def tokens_per_second(self) -> tuple[float | None, float | None]:
        """All requests together, from no overlap to full overlap."""
        low, high = self.slowest, self.fastest
        return self.concurrency / low if low else None, self.concurrency / high if high else None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "concurrency": self.concurrency,
            "roofs": [roof.to_json() for roof in self.roofs],
            "binding": None if self.binding is None else self.binding.name,
            "unknown": [roof.name for roof in self.unknown],
            "step_seconds": [self.fastest, self.slowest],
            "tokens_per_second": list(self.tokens_per_second),
            "assumptions": list(self.assumptions),
        }


def distinct_experts(experts: int, top_k: int, tokens: int) -> float:
    """Experts of one layer that a step of so many independent tokens asks for: top-k for one."""
    return experts * (1 - (1 - top_k / experts) ** tokens)


def forecast(needs: Needs, machine: PlanMachine, hits: HitRange, on_disk: float) -> Forecast:
    """The roofline. `on_disk`: share of the experts that only the disk holds."""
    g, tokens = needs.geometry, needs.at_once
    wanted = distinct_experts(g.experts, g.top_k, tokens) * len(g.moe_layers)
    few, many = wanted * (1 - hits.high), wanted * (1 - hits.low)
    kv = tokens * g.kv_bytes(needs.context, needs.element)
    read = needs.read_by_token + wanted * needs.expert + kv
    stored = g.bytes_per_expert or needs.expert
    own = ("host", machine.host_rate) if machine.in_one_memory else ("GPU", machine.gpu_rate)
    option = "--host-rate" if machine.in_one_memory else "--gpu-rate"
    operations = 2.0 * g.active_parameters * tokens
    computed = f"2 × {g.active_parameters:,} active parameters × {tokens}"
    roofs = [
        Roof("computing", operations, operations, machine.compute, "--tflops", computed),
        Roof(f"{own[0]} memory", read, read, own[1], option, "weights, experts, KV read once"),
    ]
    if not machine.in_one_memory:
        each, text = needs.expert, f"{few:.3g} to {many:.3g} missing experts, in the compute type"
        if needs.parcel is not None:
            each, text = needs.parcel, f"{few:.3g} to {many:.3g} missing experts, as stored"
        roofs.append(Roof("link", few * each, many * each, machine.link, "--link", text))
        text = "missing experts: read as stored, written, copied"
        each = stored + 2 * each
        rate = machine.host_rate
        roofs.append(Roof("host memory", few * each, many * each, rate, "--host-rate", text))
    part, text = on_disk * stored, f"missing experts as stored, {on_disk:.0%} of them on disk only"
    roofs.append(Roof("disk", few * part, many * part, machine.disk, "--disk", text))
    return Forecast(tokens, tuple(roofs), _assumptions(needs, machine, hits, on_disk))


def _assumptions(
    needs: Needs, machine: PlanMachine, hits: HitRange, on_disk: float
) -> tuple[str, ...]:
    g, found = needs.geometry, [f"hit rate {hits.low:.0%} to {hits.high:.0%}: {hits.origin}"]
    found.append(
        f"decoding at {needs.context:,} tokens of context, {needs.at_once} at a time;"
        " reading the prompt comes on top"
    )
    if needs.at_once > 1:
        found.append("the requests choose their experts independently and evenly")
    if 0 < on_disk < 1:
        found.append("experts on disk are asked for as often as those in memory")
    if needs.record is not None:
        found.append(f"experts are computed from their {g.format.name} records")
    elif g.format.name != needs.dtype:
        found.append(f"experts are stored as {g.format.name}, decoded to {needs.dtype} in slots")
    found.append("best case: all copies overlap computing; worst case: nothing overlaps")
    unrated = [q for q in (machine.link, machine.gpu_rate, machine.host_rate) if not q.is_known]
    if unrated:
        found.append("what has no rate is left out, so the forecast is a bound, not a promise")
    return tuple(found)
