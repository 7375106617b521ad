"""docs/planning.md, generated: `python -m miractl.plan.docs > docs/planning.md`."""

from miractl.parameters import PARAMETERS
from miractl.plan.cache import SEEN, token_cycle
from miractl.plan.catalog import CONFIGS, published
from miractl.plan.kv import pages
from miractl.plan.machine import Given, PlanMachine, machine_for
from miractl.plan.planner import Plan, plan_for
from miractl.plan.report import plan_lines, verdict
from miractl.plan.request import MB, PlanRequest
from miractl.profiles import load_profile
from miractl.units import format_bytes, format_seconds

# Profile: bytes per second that the card reads its memory with, from public data sheets.
CARDS = {"a10": 600e9, "a100": 1555e9, "l40s": 864e9, "rtx4090": 1008e9}
HOST_MEMORY, LINK, HOST_RATE, DISK = 64 * 10**9, 25e9, 40e9, 3e9
WORKED = "Qwen3-30B-A3B", "a10"
WIDTH = 100

_INTRO = """\
# Planning

<!-- Generated from the planner: python -m miractl.plan.docs > docs/planning.md -->

`miractl plan` says whether a model runs on a machine, with which settings, and how fast at most. It
needs a config.json and no weights. Every number comes with its terms, and every term with where it
is from: measured, given, a profile, or assumed. What is not known is left unknown.

## The tables

Five models on four cards in a host with 64 GB for this program, one request of 8,192 tokens. The
rates are **given, not measured**: 25 GB/s for the link (about 80 % of Gen4 x16), 40 GB/s for the
host's memory, 3 GB/s for the disk, and for the card's memory what its data sheet says. Memory sizes
are those of the profiles, as sold; of an A100 it is the card with 40 GB. Hit rates are an
**assumption**, see the end. Tokens per second run from nothing overlapped at the low hit rate to
everything overlapped at the high one, and leave computing itself out: they bound a plan and are no
benchmark.

"""
_COLUMNS = """\
- *parameters*: all, and those active for a token. All of them have to be kept somewhere; the
  active ones only say how much one token reads.
- *weights, KV, slots*: what must be in the card's memory, the cache of keys and values, and how
  many experts of how many fit beside them.
- *T*: the token cycle, MoE layers × top-k. With fewer slots, one token pushes out what the next
  one needs.
- *staged*: `max_staged_experts`, and what limits it.
- *on disk*: share of the experts that fits neither the card nor the host.
- *binds*: what takes longest at the low hit rate.

"""
_WORKED = """\
## One plan in full

Every number of a row can be checked by hand; here it is for one of the first table. This is what
`miractl plan {model} --profile {profile} --host-memory 64GB --link 25GB/s --gpu-rate 600GB/s
--host-rate 40GB/s --disk 3GB/s --cores 8 --concurrency 1` prints on a machine without a GPU.

```text
{text}
```

By hand, in bytes:

{steps}
"""
_STAGED = """\

## max_staged_experts

```text
max_staged = floor((total - baseline - headroom - KV reserve) / (expert bytes × factor))
```

and never more than the cap of the profile, one slot in four, or what may be page-locked. The factor
is what a staged expert takes over its own size. In this runtime the slots are cut from one arena
without gaps, so that it is 1; in page-locked memory each of an expert's tensors is rounded up to a
power of two, which the plan computes. Where nothing is known of an expert but its size, the factor
is 1.8, a rule of experience. With 24 GB, a baseline of 8.2 GB and experts of 1.1 GB that is:

```console
$ miractl plan --gpu-memory 24GB --baseline 8.2GB --expert-size 1.1GB --profile a10
```

14 without the factor, 7 with it, and 3 by the cap of the profile, each on a line of its own.

## What is assumed

- *CUDA context*: 512 MiB. *This program*: 448 MiB. *Headroom*: 512 MiB, of small memories a
  sixteenth, or `--headroom`.
- *Weights*: on a CPU without the token embedding, unless a head is made of it. It is read by rows
  from its file, through the page cache.
- *Prefill*: an upper bound of the largest step's activations. Requests that share steps read 512
  tokens of a prompt at a time; families that run one request at a time read all of it at once.
- *KV cache*: for all requests at full context, at most 1 GiB and less on a small machine, or
  `--kv-memory`; one request always gets what it needs. Requests beyond it wait, or are computed
  again: nothing fails for lack of it, so concurrency may be set as high as one likes. Requests that
  share steps keep pages of 256 tokens, one more than the context fills, 15 % kept free; windows of
  attention count as the pages they keep. This is the size that `serve` makes the cache.
- *Hit rate*: from LRU in each layer to the optimum, as replays of recorded routing of gpt-oss-20b
  and DeepSeek-V2-Lite gave them: 33 to 45 % with an eighth of the experts resident, 50 to 78 % with
  a quarter, 74 to 95 % with half, straight lines between. For models with fewer than 32 experts a
  layer the low end is that of no locality at all, and 0 where a set has fewer ways than a token
  needs. `--trace FILE.npz` replays a trace of the model itself instead.
- *Sets by cores*: N sets × M ways with M = 4 up to 7 cores, 5 for 8, 8 from 24 on, and N =
  floor(S / M). `serve` does not go by it; `--sets N` makes it, and `miractl tune` measures what
  is best.
"""


_HEADERS = (
    *("model", "parameters", "weights", "KV", "slots", "T", "hit rate", "staged", "on disk"),
    *("tokens/s", "binds"),
)


def machine(profile: str) -> PlanMachine:
    """The card of a profile in the host of the tables."""
    given = Given(
        host_memory=HOST_MEMORY,
        link=LINK,
        gpu_rate=CARDS[profile],
        host_rate=HOST_RATE,
        disk=DISK,
        cores=8,
    )
    return machine_for(None, load_profile(profile), given)


def request(profile: str) -> PlanRequest:
    """One request, with the parameters of a profile."""
    values = load_profile(profile).values

    def value(name: str) -> int:
        return int(values.get(name, PARAMETERS[name].default))

    capped = "max_staged_experts" in values
    return PlanRequest(
        ring=value("dma_buffer_size_mb") * MB,
        max_staged=value("max_staged_experts"),
        cap_origin=f"profile {profile}" if capped else "default",
    )


def plan(model: str, profile: str) -> Plan:
    """One cell of the tables."""
    geometry = published(model)
    assert geometry is not None
    return plan_for(geometry, machine(profile), request(profile))


def page() -> str:
    """The whole page."""
    parts = [_INTRO, _COLUMNS]
    for profile in CARDS:
        shown = machine(profile)
        parts.append(
            f"### {shown.name}, {format_bytes(shown.gpu_memory.value)}\n\n{_table(profile)}\n"
        )
    parts += [_worked(*WORKED), _STAGED]
    return "".join(parts)


def _table(profile: str) -> str:
    rows = [
        f"| {' | '.join(_HEADERS)} |",
        "|---" * len(_HEADERS) + "|",
    ]
    rows += [f"| {' | '.join(_cells(model, plan(model, profile)))} |" for model in CONFIGS]
    return "\n".join(rows) + "\n"


def _cells(model: str, found: Plan) -> list[str]:
    g, lines = found.needs.geometry, {x.name: x.bytes for x in found.ledgers[0].lines}
    head = [model, f"{g.parameters / 1e9:.1f} B, {g.active_parameters / 1e9:.1f} B active"]
    head += [format_bytes(lines["weights"]), format_bytes(lines["KV cache"])]
    if found.slots is None:
        return [*head, f"**does not run**: {verdict(found)}", *[""] * (len(_HEADERS) - 5)]
    low, high = found.forecast.tokens_per_second
    binding, disk = found.forecast.binding, found.forecast.roofs[-1]
    spilled = disk.what.partition(", ")[2].partition(" ")[0]
    return [
        *head,
        f"{found.slots.slots:,} of {g.expert_count:,}",
        f"{token_cycle(g):,}",
        f"{found.hits.low:.0%} to {found.hits.high:.0%}",
        f"{found.staging.limit}, {found.staging.binding.name}",
        spilled if disk.high else "none",
        f"{low or 0:.3g} to {high or 0:.3g}",
        binding.name if binding else "n/a",
    ]


def _worked(model: str, profile: str) -> str:
    found = plan(model, profile)
    text = "\n".join([*plan_lines(found, model, WIDTH), "", verdict(found)])
    return _WORKED.format(model=model, profile=profile, text=text, steps="\n".join(_steps(found)))


def _steps(found: Plan) -> list[str]:
    """The arithmetic of one plan, spelled out."""
    return [*_memory_steps(found), *_speed_steps(found)]


def _memory_steps(found: Plan) -> list[str]:
    needs, g, slots = found.needs, found.needs.geometry, found.slots
    lines = {line.name: line.bytes for line in found.ledgers[0].lines}
    cache = needs.kv_cache()
    assert slots is not None
    assert cache is not None
    total, (attention, mlp) = found.ledgers[0].total or 0, needs.widest
    outputs = f"2 × {needs.chunk} × {g.top_k} × {g.hidden:,} × {needs.element}"
    room = found.staging.room
    shapes = " + ".join(" × ".join(map(str, shape)) for shape in g.expert_shapes.values())
    return [
        f"- an expert: ({shapes}) × {needs.element} = {needs.expert:,}",
        f"- weights: {g.non_expert_parameters:,} × {needs.element} = {lines['weights']:,}",
        f"- prefill: {needs.element} × ({needs.chunk} × (6 × {attention:,} + 3 × {mlp:,}) +"
        f" {needs.chunk} × {cache.tokens + needs.chunk:,} + {needs.context:,} × 2 × {attention:,})"
        f" + {outputs} + {g.vocabulary:,} × 4 = {lines['prefill']:,}",
        f"- KV: a request fills {needs.context:,} / 256 + 1 = {pages(needs.context)} pages of"
        f" {cache.layers} layers, so that ceil({pages(needs.context)} / 0.85) = {cache.sectors} and"
        f" 2 spare are {cache.sectors + 2} × 256 × {g.kv_elements_per_token:,} × {needs.element} ="
        f" {lines['KV cache']:,}",
        f"- room: {total:,} - {lines['CUDA context']:,} - {lines['headroom']:,}"
        f" - {lines['weights']:,} - {lines['prefill']:,} - {lines['KV cache']:,} = {room:,}",
        f"- slots: floor({room:,} / {needs.expert:,}) = {slots.slots:,}",
        f"- staged: min({', '.join(str(b.experts) for b in found.staging.bounds if b.binds)}) ="
        f" {found.staging.limit}",
        f"- resident: {slots.slots:,} - {slots.slots - sum(slots.ways)} for what is just needed ="
        f" {sum(slots.ways):,} of {g.expert_count:,}, of whom bets displace"
        f" {slots.staging_limit} at most",
    ]


def _speed_steps(found: Plan) -> list[str]:
    needs, g, hits, slots = found.needs, found.needs.geometry, found.hits, found.slots
    assert slots is not None
    cycle, share = token_cycle(g), sum(slots.ways) / g.expert_count
    steps = []
    right = next(point for point in SEEN if point[0] >= share)
    left = SEEN[SEEN.index(right) - 1]
    for name, rate, column in (("low", hits.low, 1), ("high", hits.high, 2)):
        steps.append(
            f"- hit rate, {name}: {left[column]} + ({share:.4f} - {left[0]}) / ({right[0]} -"
            f" {left[0]}) × ({right[column]} - {left[column]}) = {rate:.4f}"
        )
    missing = [cycle * (1 - rate) for rate in (hits.low, hits.high)]
    steps.append(
        f"- missing: {cycle:,} × (1 - {hits.low:.4f}) = {missing[0]:.1f}, at best"
        f" {cycle:,} × (1 - {hits.high:.4f}) = {missing[1]:.1f}"
    )
    steps.append(
        f"- bytes a token reads: {needs.read_by_token:,} of active weights besides the experts +"
        f" {cycle:,} × {needs.expert:,} + {g.kv_bytes(needs.context, needs.element):,} of keys and"
        " values"
    )
    for roof in found.forecast.known:
        low, high = roof.seconds or (0.0, 0.0)
        best = "" if low == high else f", at best {format_seconds(low)}"
        work = f"{roof.high:,.0f} / {roof.rate.value or 0:,.0f}"
        steps.append(f"- {roof.name}: {work} = {format_seconds(high)}{best}")
    low_rate, high_rate = found.forecast.tokens_per_second
    added = " + ".join(format_seconds((r.seconds or (0, 0))[1]) for r in found.forecast.known)
    return [
        *steps,
        f"- tokens/s: 1 / ({added}) = {low_rate or 0:.3g}, at best"
        f" 1 / {format_seconds(found.forecast.fastest)} = {high_rate or 0:.3g}",
    ]


if __name__ == "__main__":
    print(page(), end="")
