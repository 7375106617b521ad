"""How a server decided while it recorded, as the `meta` of its trace has it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from miractl.parameters import PARAMETERS

# Of the profile's parameters those that decisions go by.
NUMBERS = (
    *("cache_threshold", "prediction_window_ms", "heat_decay_factor", "prediction_confidence"),
    *("prediction_horizon", "resample_interval_tokens", "dynamic_resampling"),
)
COUNTS = (
    *("hits", "misses", "late", "issued", "used", "wasted", "cancelled", "wasted_bytes"),
    *("waves", "waited", "copied", "on_host", "evictions", "bypassed"),
)


@dataclass(frozen=True, slots=True)
class Served:
    """What is decided by.

    `ways` of each set; `staged`: bets at most, in them; `chunks` of a transfer, which can be left
    after each; `prediction`: its mode, None without bets; `host`: how it decides what the host
    computes, None where nothing is; `warm`: it began with what an earlier run had learned;
    `parameters`: `NUMBERS`; `beside`: hits are computed by another processor than the host's.
    """

    policy: str
    ways: tuple[int, ...]
    staged: int
    chunks: int
    prediction: str | None
    host: str | None
    warm: bool
    parameters: Mapping[str, float]
    beside: bool = False

    def fits(self, slots: int) -> bool:
        """Whether so many slots can be divided so: one always serves a demand beside bets."""
        places = sum(self.ways)
        return self.staged <= places <= slots - (self.staged > 0)

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: Any) -> Self:
        """Raises ValueError for what is none."""
        try:
            ways, staged, chunks = tuple(facts["ways"]), facts["staged"], facts.get("chunks", 1)
            given = facts["parameters"]
            parameters = {name: PARAMETERS[name].check(given[name]) for name in NUMBERS}
            words = [facts[name] for name in ("policy", "prediction", "host")]
            warm, beside = bool(facts["warm"]), bool(facts.get("beside", False))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no {error}") from None
        if not ways or any(type(way) is not int or way < 0 for way in (*ways, staged)):
            raise ValueError(f"sets of {list(ways)} and {staged} staged")
        if type(chunks) is not int or chunks < 1:
            raise ValueError(f"transfers in {chunks} chunks")
        if not isinstance(words[0], str) or not all(isinstance(w, str | None) for w in words):
            raise ValueError(f"names {words}")
        known = ways, staged, chunks, words[1], words[2], warm, parameters, beside
        return cls(words[0], *known)


def counts_from(facts: Any) -> Mapping[str, int]:
    """What the server counted. Raises ValueError for what is no counts."""
    if not isinstance(facts, dict) or not all(type(facts.get(name)) is int for name in COUNTS):
        raise ValueError(f"counts {facts!r:.80}")
    return {name: facts[name] for name in COUNTS}
