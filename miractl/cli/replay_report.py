"""What `miractl replay` says: tables, fields and facts of the results."""

import csv
import io
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from miractl import units
from miractl.output import Output, table

if TYPE_CHECKING:
    from miractl.native.replay import Routing
    from miractl.simulate.linked import LinkScore, Setting
    from miractl.simulate.study import Score
    from miractl.telemetry.trace import Trace

WORST = 3
HEADERS = (
    *("policy", "hits", "late", "wasted/token", "stall/token", "time/token"),
    *("without prefetch", "saved"),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One trace: a group of scores for each number of slots; on a link, beside it those in time."""

    trace: "Trace"
    routing: "Routing"
    groups: "list[list[Score]]"
    setting: "Setting | None"
    linked: "list[list[LinkScore]]"

    @property
    def fetch(self) -> float | None:
        """Seconds to bring one expert; None without a link."""
        return None if self.setting is None else self.setting.transfer


def _worst(result: "Result", scores: "list[Score]") -> list[tuple[int, float]]:
    """Layers where the default hits least, by the model's own index."""
    from miractl.policy.registry import DEFAULT

    score = next((s for s in scores if s.policy == DEFAULT), scores[0])
    indices = result.trace.layer_indices or range(result.routing.layers)
    return sorted(zip(indices, score.layer_rates, strict=True), key=lambda pair: pair[1])[:WORST]


def print_result(result: "Result", out: Output, before: str) -> None:
    """Tables and sentences of one trace, after `before`."""
    from miractl.simulate.linked import link_verdict
    from miractl.simulate.study import verdict

    trace, routing = result.trace, result.routing
    out.data(
        before + out.style(f"{trace.name}{f' · {trace.model}' if trace.model else ''}", "bold")
    )
    cycle = routing.layers * routing.top
    out.data(
        f"{units.counted(routing.tokens, 'token')}, {units.counted(routing.layers, 'layer')},"
        f" {routing.top} of {routing.experts}"
        f" experts; a token asks for {cycle} (one LRU over all layers needs more slots to hit)"
    )
    for assumption in result.setting.assumptions if result.setting else ():
        out.data(f"- {assumption}")
    for at, scores in enumerate(result.groups):
        slots = scores[0].slots
        share = units.format_share(slots / routing.experts)
        out.data(
            f"\n{units.counted(slots, 'slot')} a layer, {slots * routing.layers:,} in all, {share}"
        )
        out.data(_table(result, scores))
        worst = ", ".join(
            f"{layer} ({units.format_share(rate)})" for layer, rate in _worst(result, scores)
        )
        out.data(f"worst layers: {worst}")
        if result.linked:
            out.data(_link_table(result.linked[at]))
        out.data(verdict(scores))
        if result.linked:
            out.data(link_verdict(result.linked[at]))


def _table(result: "Result", scores: "list[Score]") -> str:
    from miractl.policy.registry import POLICIES

    fetch = result.fetch
    rows = [
        (
            *(s.policy, units.format_share(s.hit_rate), _two(s.gap)),
            *(f"{s.misses_per_token:.1f}", f"{s.entered_per_token:.1f}"),
            *(() if fetch is None else (units.format_seconds(s.misses_per_token * fetch),)),
            POLICIES[s.policy].summary,
        )
        for s in scores
    ]
    link = () if fetch is None else ("link/token",)
    return table(
        rows, ("policy", "hits", "gap", "misses/token", "kept/token", *link, "what it does")
    )


def _two(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _fields(score: "Score", fetch: float | None, linked: "LinkScore | None") -> dict[str, Any]:
    return {
        "policy": score.policy,
        "slots_per_layer": score.slots,
        "hit_rate": score.hit_rate,
        "gap": score.gap,
        "gap_to_belady": score.layer_gap,
        "misses_per_token": score.misses_per_token,
        "entered_per_token": score.entered_per_token,
        "link_seconds_per_token": None if fetch is None else score.misses_per_token * fetch,
        **_link_fields(linked),
    }


def _rows(result: "Result", at: int) -> list[dict[str, Any]]:
    """A row for each policy at one number of slots."""
    scores = result.groups[at]
    linked = result.linked[at] if result.linked else [None] * len(scores)
    return [_fields(s, result.fetch, link) for s, link in zip(scores, linked, strict=True)]


def result_facts(result: "Result") -> dict[str, Any]:
    """One trace as plain data: bytes, seconds, shares."""
    from miractl.simulate.linked import link_verdict
    from miractl.simulate.study import verdict

    trace, routing = result.trace, result.routing
    return {
        "trace": trace.name,
        "model": trace.model,
        "tokens": routing.tokens,
        "layers": routing.layers,
        "experts": routing.experts,
        "top_k": routing.top,
        "token_cycle": routing.layers * routing.top,
        "link": None if result.setting is None else _setting_facts(result.setting),
        "runs": [
            {
                "slots_per_layer": scores[0].slots,
                "share": scores[0].slots / routing.experts,
                "verdict": verdict(scores),
                "prefetch_verdict": link_verdict(result.linked[at]) if result.linked else None,
                "policies": [
                    {**row, "layer_hit_rates": list(score.layer_rates)}
                    for row, score in zip(_rows(result, at), scores, strict=True)
                ],
            }
            for at, scores in enumerate(result.groups)
        ],
    }


def csv_of(results: "list[Result]") -> str:
    """A row for each trace, number of slots and policy."""
    text = io.StringIO()
    rows = [
        {"trace": result.trace.name, **row}
        for result in results
        for at in range(len(result.groups))
        for row in _rows(result, at)
    ]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


def _link_table(scores: "list[LinkScore]") -> str:
    """A row for each policy."""
    rows = [
        (
            *(s.policy, units.format_share(s.hit_rate), units.format_share(s.late_rate)),
            *(units.format_bytes(s.wasted_bytes), units.format_seconds(s.stall)),
            *(units.format_seconds(s.seconds), units.format_seconds(s.seconds_without)),
            units.format_share(s.saved),
        )
        for s in scores
    ]
    return table(rows, HEADERS)


def _link_fields(score: "LinkScore | None") -> dict[str, Any]:
    """The columns of CSV and JSON; all None without a link."""
    return {
        "hit_rate_with_prefetch": score and score.hit_rate,
        "late_rate": score and score.late_rate,
        "wasted_bytes_per_token": score and score.wasted_bytes,
        "stall_seconds_per_token": score and score.stall,
        "seconds_per_token": score and score.seconds,
        "stall_seconds_per_token_without_prefetch": score and score.stall_without,
        "seconds_per_token_without_prefetch": score and score.seconds_without,
    }


def _setting_facts(setting: "Setting") -> dict[str, Any]:
    """Plain data: bytes and seconds."""
    facts = asdict(setting)
    return {
        "expert_bytes": facts["expert_bytes"],
        "transfer_seconds": facts["transfer"],
        "layer_seconds": facts["compute"],
        "max_staged_experts": facts["staged"],
        "prediction_horizon": facts["horizon"],
        "assumptions": list(setting.assumptions),
    }
