"""A recorded run decided once more beside what its server counted: words, tables and facts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from miractl import units
from miractl.output import Output, table
from miractl.telemetry.served import Served
from miractl.telemetry.trace import Trace

SHOWN = ("hits", "late", "wasted")  # beside the bytes in vain
POINT = 0.001  # of a share: as exact as it has to be


@dataclass(frozen=True, slots=True)
class Comparison:
    """Counts by the names of `miractl.telemetry.served.COUNTS`: replayed, and the server's own."""

    served: Served
    replayed: Mapping[str, int]
    counted: Mapping[str, int]

    @property
    def agree(self) -> bool:
        """To 0.1 point in all that is shown."""
        ours, theirs = shares(self.replayed), shares(self.counted)
        return all(abs((ours[name] or 0.0) - (theirs[name] or 0.0)) <= POINT for name in SHOWN)

    @property
    def equal(self) -> bool:
        """To the last one, in all that is counted."""
        return dict(self.replayed) == dict(self.counted)


def shares(counts: Mapping[str, int]) -> dict[str, float | None]:
    """Of the lookups those that hit and that were late; of the bets those in vain."""
    lookups, issued = counts["hits"] + counts["misses"], counts["issued"]
    return {
        "hits": counts["hits"] / lookups if lookups else None,
        "late": counts["late"] / lookups if lookups else None,
        "wasted": counts["wasted"] / issued if issued else None,
    }


def compare(trace: Trace) -> Comparison | str:
    """The comparison, or why there is none. Raises MiractlError if the decisions part."""
    from miractl.runtime.rerun import rerun, why_not

    if (reason := why_not(trace)) is not None:
        return reason
    assert trace.served is not None
    assert trace.counts is not None
    return Comparison(trace.served, rerun(trace), trace.counts)


def print_comparison(found: Comparison | str, out: Output) -> None:
    """A table and a sentence."""
    if isinstance(found, str):
        out.data(f"\nLate and wasted bets cannot be repeated: {found}.")
        return
    served, both = found.served, (found.replayed, found.counted)
    bets = f"bets by {served.prediction}" if served.prediction else "no bets"
    rows = [(name, *(_cell(counts, name) for counts in both)) for name in SHOWN]
    rows.append(("in vain", *(units.format_bytes(counts["wasted_bytes"]) for counts in both)))
    shown = table(rows, ("", "replayed", "the server"))
    out.data(f"\nAs the server ran: {served.policy}, {bets}\n{shown}\n{_verdict(found)}")


def _cell(counts: Mapping[str, int], name: str) -> str:
    return f"{counts[name]:,} ({units.format_share(shares(counts)[name])})"


def _verdict(found: Comparison) -> str:
    bets = units.counted(found.replayed["issued"], "bet")
    lookups = units.counted(found.replayed["hits"] + found.replayed["misses"], "lookup")
    of = f"of {lookups} and {bets}"
    if found.equal:
        return f"They agree to the last one, {of}."
    return f"They agree to 0.1 point, {of}." if found.agree else f"They do not agree, {of}."


def comparison_facts(found: Comparison | str) -> dict[str, Any]:
    """The same for programs."""
    if isinstance(found, str):
        return {"reason": found}
    return {
        "policy": found.served.policy,
        "prediction_mode": found.served.prediction,
        "agree": found.agree,
        "replayed": {**found.replayed, "shares": shares(found.replayed)},
        "server": {**found.counted, "shares": shares(found.counted)},
    }
