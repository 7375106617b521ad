"""A plan in words and columns, for people. Pure: a plan in, lines out."""

import textwrap
from collections.abc import Iterator, Sequence

from miractl.plan.cache import token_cycle
from miractl.plan.forecast import Forecast, Roof
from miractl.plan.ledger import Ledger
from miractl.plan.machine import PlanMachine, Quantity
from miractl.plan.needs import Needs
from miractl.plan.planner import Plan
from miractl.plan.staging import StagingPlan, terms
from miractl.units import format_bytes, format_rate, format_seconds

NAME, SIZE = 20, 10  # columns: what it is, how much; the rest says why
Row = tuple[str, str, str]  # name, amount, words


def plan_lines(plan: Plan, model: str, width: int) -> list[str]:
    """The whole plan, its verdict and warnings aside."""
    sections: list[tuple[str, Sequence[Row]]] = [
        ("machine", list(_machine_rows(plan.machine))),
        *((_title(ledger), list(_ledger_rows(ledger))) for ledger in plan.ledgers),
        ("expert cache", list(_cache_rows(plan))),
        ("max_staged_experts", list(_staging_rows(plan.staging))),
        (_forecast_title(plan.forecast), list(_forecast_rows(plan.forecast))),
    ]
    if plan.refusal is not None:  # what there is no room for has no speed either
        sections = [
            part for part in sections if part[0] == "machine" or part[0][:3] in ("in ", "on ")
        ]
    lines = [f"{model} on {plan.machine.name}", "", *_facts(plan, width)]
    for title, rows in sections:
        lines += ["", title, *_columns(rows, width)]
    if plan.refusal is None:
        lines += ["", "assumptions"]
        for text in plan.forecast.assumptions:
            lines += wrapped(text, width, "  - ")
    return lines


def wrapped(text: str, width: int, first: str) -> list[str]:
    """Lines of at most `width`; `first` begins the first and is left blank on the others."""
    indent = " " * len(first)
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
    )


def staging_lines(plan: StagingPlan, width: int) -> list[str]:
    """The terms and limits of max_staged_experts alone."""
    return ["max_staged_experts", *_columns(list(_staging_rows(plan)), width)]


def verdict(plan: Plan) -> str:
    """One line: whether it runs, and with what."""
    if plan.refusal is not None:
        return f"does not run: {plan.refusal.message}"
    assert plan.slots is not None
    count, experts = plan.slots.slots, plan.needs.geometry.expert_count
    at_once = (
        f"up to {plan.max_concurrency:,} at once if slots give way"
        if plan.max_concurrency > 1
        else "one alone"
    )
    return (
        f"runs: {count:,} of {experts:,} experts in memory ({count / experts:.0%}),"
        f" {plan.staging.limit if count < experts else 0} staged;"
        f" requests of {plan.needs.context:,} tokens, {at_once}"
    )


def _facts(plan: Plan, width: int) -> Iterator[str]:
    g, needs = plan.needs.geometry, plan.needs
    stored = f", {format_bytes(g.bytes_per_expert)} as stored" if g.bytes_per_expert else ""
    expert = f"{format_bytes(needs.expert)} in {needs.dtype}{stored}"
    if needs.record is not None:
        expert = f"{format_bytes(needs.record)}, an {g.format.name} record, computed as stored"
    rows = (
        (
            "model",
            f"{g.family}: {len(g.moe_layers)} MoE layers of {g.experts} experts, top {g.top_k}",
        ),
        ("parameters", f"{g.parameters:,} in all, which have to be kept somewhere;"),
        ("", f"{g.active_parameters:,} of them active for a token, which says how fast"),
        ("expert", expert),
        ("use", _use(needs)),
    )
    for label, text in rows:
        yield from wrapped(text, width, f"{label:<12}")


def _use(needs: Needs) -> str:
    """Requests and their tokens; how many may be long at the same time."""
    count, full, text = needs.request.concurrency, needs.at_once, f"{needs.context:,} tokens"
    if not needs.is_batched:
        return f"{text} of context, one request after another"
    more = "" if full == count else f", {full} of them at full context"
    return f"{text} of context, {count} at a time{more}"


def _columns(rows: Sequence[Row], width: int) -> Iterator[str]:
    """Names, amounts to the right, and words that wrap within their own column."""
    names = max([NAME, *(len(name) for name, _, _ in rows)])
    sizes = max([SIZE, *(len(amount) for _, amount, _ in rows)])
    indent = names + sizes + 6
    for name, amount, words in rows:
        first = f"  {name:<{names}}  {amount:>{sizes}}"
        said = wrapped(words, max(24, width - indent), "") or [""]
        yield f"{first}  {said[0]}".rstrip()
        yield from (" " * indent + more for more in said[1:])


def _machine_rows(machine: PlanMachine) -> Iterator[Row]:
    def row(name: str, quantity: Quantity, amount: str, option: str) -> Row:
        return name, amount, quantity.origin if quantity.is_known else f"unknown (give {option})"

    m = machine
    if m.device == "cuda" and not m.unified:
        yield row("GPU memory", m.gpu_memory, format_bytes(m.gpu_memory.value), "--gpu-memory")
        yield row("GPU memory rate", m.gpu_rate, format_rate(m.gpu_rate.value), "--gpu-rate")
        yield row("link", m.link, format_rate(m.link.value), "--link")
        if not m.link.is_known and m.link_theory.is_known:
            yield "link, at most", format_rate(m.link_theory.value), m.link_theory.origin
    yield row("host memory", m.host_memory, format_bytes(m.host_memory.value), "--host-memory")
    yield row("host memory rate", m.host_rate, format_rate(m.host_rate.value), "--host-rate")
    yield row("disk", m.disk, format_rate(m.disk.value), "--disk")
    yield row("cores", m.cores, "n/a" if m.cores.value is None else f"{m.cores.value:g}", "--cores")


def _title(ledger: Ledger) -> str:
    if ledger.place == "disk":
        return "on disk"
    return f"in {ledger.name}, of {format_bytes(ledger.total)} ({ledger.origin})"


def _ledger_rows(ledger: Ledger) -> Iterator[Row]:
    for line in ledger.lines:
        yield line.name, format_bytes(line.bytes), line.formula
    if ledger.left is not None and ledger.left < 0:
        yield "missing", format_bytes(-ledger.left), ""
    elif ledger.left is not None:
        yield "left", format_bytes(ledger.left), ""


def _cache_rows(plan: Plan) -> Iterator[Row]:
    g, (sets, ways) = plan.needs.geometry, plan.division
    slots = plan.slots
    if slots is not None:
        each = f"{min(slots.ways)}" + (f" to {max(slots.ways)}" if len(set(slots.ways)) > 1 else "")
        yield "slots", f"{slots.slots:,}", f"of {g.expert_count:,} experts"
        used = f"{len(slots.ways)} sets of {each} ways"
        if len(slots.ways) == len(g.moe_layers):
            used += ", one a layer (learned: one set of all)"
        used += "; the rest for what is just needed" if sum(slots.ways) < slots.slots else ""
        yield "residents", f"{sum(slots.ways):,}", used
    cores = plan.machine.cores
    words = "N sets × M ways, M by the cores: few ways on few cores"
    yield (
        "by cores",
        f"{sets} × {ways}",
        f"{words} ({cores.value:g} here)" if cores.value else words,
    )
    words = f"T = {len(g.moe_layers)} MoE layers × top {g.top_k}: what one token asks for"
    yield "token cycle", f"{token_cycle(g):,}", words
    if slots is not None:
        hits = plan.hits
        same = hits.low == hits.high
        span = (
            f"{hits.low * 100:.0f} %" if same else f"{hits.low * 100:.0f}-{hits.high * 100:.0f} %"
        )
        yield "hit rate", span, hits.origin


def _staging_rows(plan: StagingPlan) -> Iterator[Row]:
    for name, size, text in terms(plan):
        yield name, text, f"{size:,} B"
    yield "expert", format_bytes(plan.expert), f"{plan.expert:,} B"
    for bound in plan.bounds:
        binds = " <- this one binds" if bound is plan.binding else ""
        yield bound.name, f"{bound.experts:,}", bound.formula + binds


def _forecast_title(forecast: Forecast) -> str:
    count = forecast.concurrency
    return "forecast: one step" + (
        f" of {count} requests, a token each" if count > 1 else ", one token"
    )


def _forecast_rows(forecast: Forecast) -> Iterator[Row]:
    for roof in forecast.roofs:
        yield roof.name, _span(roof), _work(roof, roof is forecast.binding)
    low, high = forecast.tokens_per_second
    if high is None:
        yield "tokens/s", "n/a", "no rate is known"
    elif low == high:
        yield "tokens/s", f"{high:.3g}", "there is nothing to overlap"
    elif low is None:
        names = ", ".join(roof.name for roof in forecast.unknown if roof.name != "computing")
        yield "tokens/s", f"< {high:.3g}", f"at most, as no rate is known for: {names}"
    else:
        yield "tokens/s", f"{low:.3g}-{high:.3g}", "nothing overlapped, to everything overlapped"


def _span(roof: Roof) -> str:
    if roof.seconds is None:
        return "unknown"
    low, high = (format_seconds(seconds) for seconds in roof.seconds)
    return low if low == high else f"{low.split(' ')[0]}-{high}" if low[-2:] == high[-2:] else high


def _work(roof: Roof, binds: bool) -> str:
    if not roof.high:
        return "nothing to do: nothing is missing" if roof.name != "computing" else roof.what
    if roof.seconds is None:
        return f"give {roof.option}; {roof.what}"
    sizes = list(dict.fromkeys(format_bytes(work) for work in (roof.low, roof.high)))
    amount = " to ".join(sizes) if roof.name != "computing" else f"{roof.high:.3g} operations"
    rate = format_rate(roof.rate.value) if roof.name != "computing" else f"{roof.rate.value:.3g}/s"
    binds_text = " <- this one binds" if binds else ""
    return f"{amount} at {rate} ({roof.rate.origin}): {roof.what}{binds_text}"
