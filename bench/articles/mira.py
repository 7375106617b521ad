"""Fewer experts on the card, more requests: the tables of the article on Mira."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.articles.kernels import REACHED, markdown
from miractl.checkpoint.config import ModelConfig
from miractl.checkpoint.geometry import Geometry, geometry_of
from miractl.plan.catalog import published
from miractl.plan.docs import CARDS, LINK
from miractl.plan.forecast import distinct_experts
from miractl.plan.machine import Given, machine_for
from miractl.plan.planner import Plan, plan_for
from miractl.plan.request import PlanRequest
from miractl.plan.slots import even_ways
from miractl.plan.staging import plan_staging
from miractl.profiles import load_profile
from miractl.simulate.synthetic import repeating
from miractl.simulate.timing import Costs, Misses, Timing, simulate
from miractl.units import format_bytes, format_rate, format_seconds

TEXT = Path(__file__).with_name("mira.md")
SHAPE = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 1536,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
GB = 10**9
CONTEXT, BATCH, REPEAT, STEPS = 2048, 32, 0.4, 40
A10_HOUR = 0.98  # dollars
UNBOUND = 2**50  # bytes for keys and values: all requests at full context
X8 = LINK / 2


@dataclass(frozen=True)
class Half:
    """One line of the article's table: P95 in seconds, GB, requests, dollars for a "token"."""

    p95: float
    memory: float
    concurrency: int
    cost: float


@dataclass(frozen=True)
class Row:
    """A card, without and with the method."""

    profile: str
    name: str
    without: Half
    having: Half

    @property
    def kept(self) -> float:
        """Share of the experts that is left on the card, by the memory that is saved."""
        return 1 - (self.without.memory - self.having.memory) * GB / experts_bytes()


ROWS = (
    Row("a10", "A10", Half(0.412, 19.2, 24, 0.0032), Half(0.338, 13.7, 36, 0.0021)),
    Row("a100", "A100 40 GB", Half(0.218, 28.6, 48, 0.0029), Half(0.192, 22.3, 64, 0.0022)),
    Row("l40s", "L40S", Half(0.185, 31.4, 56, 0.0026), Half(0.167, 25.8, 72, 0.0020)),
)


@cache
def shape() -> Geometry:
    """What the article calls Llama-3-8B-MoE, as far as its sizes tell."""
    return geometry_of(ModelConfig(Path("8 experts of 1.2 GB"), SHAPE))


def expert_bytes() -> int:
    """One expert of one layer."""
    return shape().expert_bytes_as("BF16")


def experts_bytes() -> int:
    """All experts of all layers."""
    return expert_bytes() * shape().expert_count


def plan(row: Row, concurrency: int, share: float) -> Plan:
    """A plan with a share of the experts on the card, all requests at full context."""
    given = Given(host_memory=64 * GB, link=LINK, gpu_rate=CARDS[row.profile])
    request = PlanRequest(
        context=CONTEXT,
        concurrency=concurrency,
        expert_memory=f"{100 * share:.2f}%",
        kv_memory=UNBOUND,
    )
    return plan_for(shape(), machine_for(None, load_profile(row.profile), given), request)


@cache
def most(row: Row, share: float) -> int:
    """Requests at full context that fit."""
    count = 0
    while plan(row, count + 1, share).runs:
        count += 1
    return count


def costs(row: Row, batch: int, link: float) -> Costs:
    """Seconds, by the bytes that each part reads at the rates of the data sheets."""
    g, rate = shape(), CARDS[row.profile] * REACHED
    head = g.vocabulary * g.hidden * 2
    rest = g.non_expert_parameters * 2 - 2 * head + batch * g.kv_bytes(CONTEXT, 2)
    size, layers = expert_bytes(), len(g.moe_layers)
    return Costs(size / rate, 0.0, size / link, layer=rest / layers / rate, step=head / rate)


def resident_seconds(row: Row, batch: int) -> float:
    """A step with every expert on the card."""
    g, c = shape(), costs(row, batch, LINK)
    experts = distinct_experts(g.experts, g.top_k, batch) * c.device
    return len(g.moe_layers) * (c.layer + experts) + c.step


@cache
def step(row: Row, batch: int, link: float) -> Timing:
    """Steps with the share of the experts that the article's memory leaves."""
    g = shape()
    layers = len(g.moe_layers)
    routing = repeating(STEPS * batch, layers, g.experts, g.top_k, REPEAT)
    ways = even_ways(int(row.kept * g.expert_count), layers)
    return simulate(routing, ways, Misses.OFFLOAD, costs(row, batch, link), batch)


def section() -> str:
    """The whole section."""
    g = shape()
    return TEXT.read_text(encoding="utf-8").format(
        intermediate=f"{SHAPE['intermediate_size']:,}",
        index=format_bytes(experts_bytes() / g.experts),
        each=f"{expert_bytes() / 1e6:.1f} MB",
        parameters=f"{g.parameters / 1e9:.1f}",
        context=f"{CONTEXT:,}",
        batch=BATCH,
        memory=memory(),
        request=format_bytes(plan(ROWS[0], 2, 1).needs.kv().bytes // 2),
        latency=latency(),
        excess=excess(),
        repeat=f"{REPEAT:.0%}",
        batches=batches(),
        cost=cost(),
        link=format_rate(LINK),
        claims=claims(),
    )


def memory() -> str:
    """Requests at once and bytes, published and planned."""
    rows = []
    for row in ROWS:
        for name, half, share in (
            ("all experts", row.without, 1.0),
            (f"{row.kept:.0%} of them", row.having, row.kept),
        ):
            needed = plan(row, half.concurrency, share)
            rows.append(
                (
                    *(row.name, name, half.concurrency, f"**{most(row, share)}**"),
                    *(f"{half.memory} GB", f"{needed.own_bytes / GB:.1f} GB"),
                )
            )
    headers = (
        *("card", "on the card", "requests, published", "requests, planned"),
        *("memory, published", "memory that so many requests need"),
    )
    return markdown(headers, rows)


def latency() -> str:
    """Seconds of a step, published and simulated."""
    rows = []
    for row in ROWS:
        for link, lanes in ((X8, 8), (LINK, 16)) if row.profile == "a10" else ((LINK, 16),):
            found = step(row, BATCH, link)
            rows.append(
                (
                    *(row.name, f"x{lanes}, {format_rate(link)}"),
                    *(format_seconds(row.without.p95), format_seconds(row.having.p95)),
                    format_seconds(resident_seconds(row, BATCH)),
                    f"{format_seconds(found.p95)}, {format_seconds(found.overlapped)} at best",
                    f"{found.moved / STEPS * expert_bytes() / GB:.2f} GB",
                )
            )
    headers = (
        *("card", "link", "P95 without, published", "with, published"),
        *("step with all experts, simulated", "P95 with part of them, simulated", "moved a step"),
    )
    return markdown(headers, rows)


def excess() -> str:
    """Published P95 without the method over a step that reads the card's memory once."""
    times = [row.without.p95 / resident_seconds(row, BATCH) for row in ROWS]
    return f"{min(times):.0f} to {max(times):.0f}"


def batches() -> str:
    """What a batch does to a cache: an A10 with the same share, x16."""
    g, row, rows = shape(), ROWS[0], []
    for batch in (1, 2, 4, 8, 16, 32):
        found = step(row, batch, LINK)
        rows.append(
            (
                *(batch, f"{distinct_experts(g.experts, g.top_k, batch):.1f} of {g.experts}"),
                *(f"{found.hit_rate:.0%}", f"{batch / resident_seconds(row, batch):,.0f}"),
                *(f"{batch / found.seconds:,.1f}", f"{batch / found.overlapped:,.1f}"),
            )
        )
    headers = (
        *("sequences", "experts a layer and step", "hits", "tokens/s, all experts on the card"),
        *(f"tokens/s, {row.kept:.0%} of them", "at best"),
    )
    return markdown(headers, rows)


def cost() -> str:
    """Cost with over cost without, three ways."""
    rows = []
    for row in ROWS:
        a, b = row.without, row.having
        simulated = [
            resident_seconds(row, a.concurrency) / a.concurrency,
            step(row, b.concurrency, LINK).overlapped / b.concurrency,
        ]
        dollars = ["n/a"] * 2
        if row.profile == "a10":
            dollars = [f"${1e6 * A10_HOUR / 3600 * each:.2f}" for each in simulated]
        rows.append(
            (
                *(row.name, f"${a.cost:.4f}, ${b.cost:.4f}", f"{b.cost / a.cost:.2f}"),
                *(
                    f"{a.concurrency / b.concurrency:.2f}",
                    f"{b.p95 / b.concurrency / (a.p95 / a.concurrency):.2f}",
                ),
                *(f"{simulated[1] / simulated[0]:.1f}", ", ".join(dollars)),
            )
        )
    headers = (
        *("card", "a token, published", "ratio", "ratio of requests at once"),
        *("ratio by published P95 and requests", "ratio, simulated at best"),
        "a million tokens, simulated",
    )
    return markdown(headers, rows)


def claims() -> str:
    """Single claims and their arithmetic."""
    qwen, mixtral = published("Qwen3-30B-A3B"), published("Mixtral-8x7B")
    assert qwen is not None
    assert mixtral is not None
    sizes = [each.expert_bytes_as("BF16") for each in (qwen, mixtral)]
    staged = plan_staging(
        total=24 * GB,
        baseline=82 * GB // 10,
        headroom=0,
        kv_reserve=0,
        expert=11 * GB // 10,
        cap=3,
        cap_name="the cap of profile a10",
    )
    terms = ", ".join(f"{bound.experts} ({bound.name})" for bound in staged.bounds)
    token = A10_HOUR / 3600 * ROWS[0].without.p95
    rows = [
        (
            "a staged expert is used after 50 µs",
            f"page-locked memory is the host's: 50 µs carry {format_bytes(50e-6 * LINK)} at"
            f" {format_rate(LINK)}; 1.1 GB take {format_seconds(1.1e9 / LINK)}",
        ),
        (
            "200 experts a second saturate the link",
            f"of 1.2 GB that would be {format_rate(200 * 1.2e9)}; {LINK / 1.2e9:.0f} do, or"
            f" {LINK / expert_bytes():.0f} of one layer",
        ),
        (
            "P95 of a switch below 800 µs is healthy",
            f"{format_bytes(800e-6 * LINK)} at most; an expert of this model takes"
            f" {format_seconds(expert_bytes() / LINK)}, Qwen3-30B-A3B's"
            f" {format_seconds(sizes[0] / LINK)}, Mixtral's {format_seconds(sizes[1] / LINK)}",
        ),
        ("14 staged experts are 3, by a factor of 1.8", terms),
        (
            "a token costs $0.0032 on an A10",
            f"that is {0.0032 * 3600 / A10_HOUR:.1f} s of the card; one request alone, at the"
            f" published P95, costs ${token:.6f} a token, one of 24 ${token / 24:.7f}",
        ),
        (
            "measured at a batch of 32",
            "more than the 24 requests that the same table calls the most on an A10",
        ),
    ]
    return markdown(("claim", "arithmetic"), rows)
