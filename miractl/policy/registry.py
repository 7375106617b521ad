"""The eviction policies by name: what the replay compares and what the runtime can run."""

from dataclasses import dataclass

import numpy as np

from miractl.errors import UsageError
from miractl.native.library import available
from miractl.native.replay import Admission, Kind
from miractl.policy.eviction import (
    Anybody,
    CompiledHeat,
    EvictionPolicy,
    HeatEviction,
    LeastOftenUsed,
    LeastRecentlyUsed,
    Static,
)
from miractl.policy.heat import HeatTable
from miractl.policy.learned import Learned
from miractl.policy.memory import Memory

DEFAULT, WITHOUT_LIBRARY = "learned", "heat-shift"


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule, and what it may do: `pooled`, layers share all slots; `bypass`, a miss may stay out.

    `shifts`: slots move between layers that do not share them, to where they are worth most.
    `optimum` names the policy that sees the future and may do the same.
    """

    name: str
    summary: str
    kind: Kind
    optimum: str
    pooled: bool = False
    bypass: bool = False
    shifts: bool = False

    @property
    def admission(self) -> Admission:
        """How a newcomer gets in."""
        if self.kind is Kind.HEAT:
            return Admission.HOTTER
        return Admission.WORTHIER if self.bypass else Admission.ALWAYS


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("lru", "least recently used goes", Kind.LRU, "belady"),
        Policy("lfu", "least often used goes, 5 % forgotten a token", Kind.LFU, "belady"),
        Policy("random", "anybody goes", Kind.RANDOM, "belady"),
        Policy("heat", "coldest goes, a cold miss may stay out", Kind.HEAT, "belady-bypass"),
        Policy("lru-shift", "lru, slots move between layers", Kind.LRU, "belady", shifts=True),
        Policy("lfu-shift", "lfu, slots move between layers", Kind.LFU, "belady", shifts=True),
        Policy(
            *("heat-shift", "heat, slots move between layers", Kind.HEAT, "belady-bypass"),
            shifts=True,
        ),
        Policy("learned-layer", "learned, a miss always enters", Kind.LEARNED, "belady"),
        Policy(
            *("learned-bypass", "learned, a miss may stay out", Kind.LEARNED, "belady-bypass"),
            bypass=True,
        ),
        Policy(
            *("learned", "learned, one pool, a miss may stay out", Kind.LEARNED, "optimum"),
            pooled=True,
            bypass=True,
        ),
        Policy("lru-pool", "least recently used goes, one pool", Kind.LRU, "belady-pool", True),
        Policy("belady", "knows the future", Kind.BELADY, "belady"),
        Policy(
            *("belady-bypass", "knows the future, a miss may stay out", Kind.BELADY),
            optimum="belady-bypass",
            bypass=True,
        ),
        Policy("belady-pool", "knows the future, one pool", Kind.BELADY, "belady-pool", True),
        Policy(
            *("optimum", "knows the future, one pool, a miss may stay out", Kind.BELADY, "optimum"),
            pooled=True,
            bypass=True,
        ),
    )
}
# Those that see no future; a running engine has one more, which needs an earlier run to go by.
ONLINE = tuple(name for name, policy in POLICIES.items() if policy.kind is not Kind.BELADY)
STATIC = "static"
RUNNABLE = (*ONLINE, STATIC)


def make_policy(
    name: str, top: int, slots: float, heat: HeatTable, memory: Memory | None = None
) -> EvictionPolicy:
    """One of RUNNABLE for the layers and experts of `heat`, k a token, `slots` a layer on average.

    Raises MiractlError for a learned one without the native library, UsageError for static without
    a memory.
    """
    if name == STATIC:
        if memory is None:
            raise UsageError(
                "policy static keeps what an earlier run used most, and knows of none",
                hint="--warm-heat FILE, as `miractl heat export` or an earlier serve wrote it",
            )
        return Static(memory.activations.astype(np.float64))
    policy, (layers, experts) = POLICIES[name], heat.shape
    if policy.kind is Kind.LEARNED:
        return Learned(layers, experts, top, slots, policy.admission)
    made: EvictionPolicy
    if policy.kind is Kind.HEAT:
        made = (CompiledHeat if available() else HeatEviction)(heat, layers, experts)
    elif policy.kind is Kind.LFU:
        made = LeastOftenUsed(layers, experts)
    else:
        made = (LeastRecentlyUsed if policy.kind is Kind.LRU else Anybody)(layers, experts)
    made.shifts = policy.shifts
    return made


def ways_for(name: str, ways: tuple[int, ...], asked: bool = False) -> tuple[int, ...]:
    """How a policy divides so many residents: as they are, or, unless `asked`, all in one pool."""
    pooled = name == STATIC or POLICIES[name].pooled
    return (sum(ways),) if pooled and not asked else ways
