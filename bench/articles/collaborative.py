"""Misses computed on the CPU: the tables of the article on CPU-GPU collaborative inference."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from bench.articles.kernels import REACHED, markdown
from miractl.checkpoint.config import ModelConfig
from miractl.checkpoint.geometry import Geometry, geometry_of
from miractl.native.replay import Routing
from miractl.plan.cache import token_cycle
from miractl.plan.catalog import published
from miractl.plan.docs import CARDS, LINK
from miractl.plan.slots import even_ways
from miractl.simulate.synthetic import repeating
from miractl.simulate.timing import Costs, Misses, Timing, covering, simulate
from miractl.units import format_bytes, format_rate, format_seconds

TEXT = Path(__file__).with_name("collaborative.md")
TRANSFER, ON_GPU, ONE_CORE, ALL_CORES, MOST_CORES = 28.02e-3, 0.3e-3, 44.1e-3, 7.3e-3, 24
FREE = 24 - 5  # "GB" for slots
SPEEDS = {4: ((14, 4), 2.5), 8: ((11, 5), 3.0), 24: ((7, 8), 4.8)}  # cores: (N, M), tokens/s
OFFLOADED = 1.05  # tokens/s
PHI_SPEED, PHI_GAIN = 10.4, 4.3
REPEATS = (0.3, 0.4, 0.5)  # of a token's experts, the next one uses; the article says 30 to 50 %
CORES = (1, 2, 4, 8, 16, 24)
TOKENS = 200
PHI = {
    "model_type": "phimoe",
    "hidden_size": 4096,
    "intermediate_size": 6400,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "attention_bias": True,
    "lm_head_bias": True,
    "max_position_embeddings": 131072,
    "vocab_size": 32064,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Setup:
    """A model, cores, and what the article's CPU times are taken for: one expert's or a layer's."""

    geometry: Geometry
    cores: int
    is_layer: bool = True
    link: float | None = None  # bytes per second; None as published

    @property
    def costs(self) -> Costs:
        """Seconds, all from the published ones by the sizes of what is read."""
        g, mixtral = self.geometry, expert_bytes(shape("Mixtral-8x7B"))
        size, rate = expert_bytes(g), CARDS["rtx4090"] * REACHED
        head = g.vocabulary * g.hidden * 2
        rest = g.non_expert_parameters * 2 - 2 * head  # and no embeddings: a token reads one row
        host = host_seconds(self.cores) / (g.top_k if self.is_layer else 1)
        return Costs(
            device=size / rate,
            host=host * size / mixtral,
            link=TRANSFER * size / mixtral if self.link is None else size / self.link,
            layer=rest / rate / len(g.moe_layers),
            step=head / rate,
        )


@cache
def shape(name: str) -> Geometry:
    """The shape of a model by its name."""
    if name == "Phi-3.5-MoE":
        return geometry_of(ModelConfig(Path(name), PHI))
    found = published(name)
    assert found is not None
    return found


def expert_bytes(geometry: Geometry) -> int:
    """Bytes of one expert in bfloat16."""
    return geometry.expert_bytes_as("BF16")


def slots(geometry: Geometry, unit: int = 2**30) -> int:
    """Experts that fit beside what stays on the card."""
    return FREE * unit // expert_bytes(geometry)


def host_seconds(cores: int) -> float:
    """Part of the time falls with the cores, through both published points."""
    falling = (ONE_CORE - ALL_CORES) / (1 - 1 / MOST_CORES)
    return ONE_CORE - falling * (1 - 1 / cores)


@cache
def routing(name: str, repeat: float) -> Routing:
    """Routing of a model's shape with the stated locality."""
    g = shape(name)
    return repeating(TOKENS, len(g.moe_layers), g.experts, g.top_k, repeat)


def run(name: str, repeat: float, ways: tuple[int, ...], misses: Misses, setup: Setup) -> Timing:
    """One simulation."""
    return simulate(routing(name, repeat), ways, misses, setup.costs)


def speeds(name: str, ways: tuple[int, ...], misses: Misses, setup: Setup) -> list[float]:
    """Tokens a second at each of REPEATS."""
    return [1 / run(name, repeat, ways, misses, setup).seconds for repeat in REPEATS]


def section() -> str:
    """The whole section."""
    return TEXT.read_text(encoding="utf-8").format(
        implied=implied(),
        readings=readings(),
        divisions=divisions(),
        uses=uses(),
        phi=phi(),
        repeats=f"{REPEATS[0]:.0%} to {REPEATS[-1]:.0%}",
        tokens=TOKENS,
        slots=slots(shape("Mixtral-8x7B")),
    )


def implied() -> str:
    """What single figures of the article say about the machine."""
    g = shape("Mixtral-8x7B")
    size, asked, sheet = expert_bytes(g), token_cycle(g), CARDS["rtx4090"]
    need = 1 - 1 / OFFLOADED / (asked * TRANSFER)

    def reads(seconds: float) -> str:
        return f"{format_rate(size / seconds)}, or {format_rate(g.top_k * size / seconds)}"

    rows = [
        ("an expert of Mixtral", "340 MB", f"{size:,} B = {format_bytes(size)}"),
        ("all of Mixtral", "80 GB", f"{g.parameters:,} × 2 B = {g.parameters * 2 / 1e9:.1f} GB"),
        (
            f"slots in {FREE} GB",
            "56",
            f"{slots(g, 10**9)} in GB, {slots(g)} in GiB; the tables here have {slots(g)}",
        ),
        (
            "a transfer",
            f"{TRANSFER * 1e3:.0f} ms",
            f"{format_rate(size / TRANSFER)}: a Gen3 x16 or Gen4 x8 link; at {format_rate(LINK)}"
            f" {format_seconds(size / LINK)}",
        ),
        (
            "an expert on the GPU",
            f"{ON_GPU * 1e3:.1f} ms",
            f"**cannot be**: {format_rate(size / ON_GPU)} from a memory of {format_rate(sheet)};"
            f" at least {format_seconds(size / sheet)}",
        ),
        ("one core", f"{ONE_CORE * 1e3} ms", f"{reads(ONE_CORE)} if that is a layer's two"),
        ("24 cores", f"{ALL_CORES * 1e3} ms", f"{reads(ALL_CORES)} if that is a layer's two"),
        (
            "offloading alone",
            f"{OFFLOADED} tokens/s",
            f"without any hit {1 / (asked * TRANSFER):.2f}; it takes {need:.0%} hits",
        ),
        (
            "the gains",
            "127, 172, 336 %",
            "of a baseline of "
            + ", ".join(
                f"{speed / (1 + gain):.2f}"
                for (_, speed), gain in zip(SPEEDS.values(), (1.27, 1.72, 3.36), strict=True)
            )
            + f" tokens/s; over {OFFLOADED} they are "
            + ", ".join(f"{speed / OFFLOADED - 1:.0%}" for _, speed in SPEEDS.values()),
        ),
    ]
    return markdown(("figure", "published", "by arithmetic"), rows)


def readings() -> str:
    """The published speeds beside both readings of the CPU times, and both ways to fill."""
    g, rows = shape("Mixtral-8x7B"), []
    for cores, (division, speed) in SPEEDS.items():
        ways, setup = covering(len(g.moe_layers), *division), Setup(g, cores)
        found = [
            speeds("Mixtral-8x7B", ways, misses, replace(setup, is_layer=is_layer))
            for is_layer in (True, False)
            for misses in (Misses.FILL, Misses.HOST)
        ]
        hits = [run("Mixtral-8x7B", r, ways, Misses.FILL, setup).hit_rate for r in REPEATS]
        rows.append(
            (
                *(cores, division, f"**{speed}**"),
                *(f"{min(each):.2f} to {max(each):.2f}" for each in found),
                *(f"{found[0][1] / speed - 1:+.0%}", f"{min(hits):.0%} to {max(hits):.0%}"),
            )
        )
    headers = (
        *("cores", "(N, M)", "published", "a layer's time, always sent for", "idle link only"),
        *("an expert's time, always sent for", "idle link only", "first against published", "hits"),
    )
    return markdown(headers, rows)


def divided(geometry: Geometry, ways: int) -> tuple[int, ...]:
    """All slots in sets of so many ways for the first layers."""
    return covering(len(geometry.moe_layers), slots(geometry) // ways, ways)


def division_speeds(
    misses: Misses, repeat: float = REPEATS[1], cores: tuple[int, ...] = CORES
) -> dict[int, list[float]]:
    """Cores: tokens a second with M = 1 to 8 ways, N = floor(slots / M) layers covered."""
    g, name = shape("Mixtral-8x7B"), "Mixtral-8x7B"
    return {
        count: [
            1 / run(name, repeat, divided(g, ways), misses, Setup(g, count)).seconds
            for ways in range(1, g.experts + 1)
        ]
        for count in cores
    }


def divisions() -> str:
    """Every division at every number of cores where all that is missed is sent for."""
    g, rows, idle = shape("Mixtral-8x7B"), [], division_speeds(Misses.HOST)
    for cores, found in division_speeds(Misses.FILL).items():
        cells = [f"**{each:.2f}**" if each == max(found) else f"{each:.2f}" for each in found]
        best = max(idle[cores])
        ways = idle[cores].index(best) + 1
        cells.append(f"{best:.2f} at ({slots(g) // ways}, {ways}), {idle[cores][-1]:.2f} at last")
        rows.append((cores, *cells, SPEEDS[cores][0] if cores in SPEEDS else "n/a"))
    headers = [f"({slots(g) // ways}, {ways})" for ways in range(1, g.experts + 1)]
    return markdown(("cores", *headers, "idle link only, best", "published as best"), rows)


def uses() -> str:
    """The same card and slots used otherwise."""
    g, rows = shape("Mixtral-8x7B"), []
    layers = len(g.moe_layers)
    each = even_ways(slots(g), layers)
    ways = {
        "offloading, (14, 4)": (covering(layers, 14, 4), Misses.OFFLOAD),
        "offloading, a set for each layer": (each, Misses.OFFLOAD),
        "no cache, all on the CPU": ((0,), Misses.HOST),
        "on the CPU, a set for each layer, idle link only": (each, Misses.HOST),
        "for each layer whatever is shorter": (each, Misses.CHEAPER),
    }
    for name, (sets, misses) in ways.items():
        for link in (None, LINK):
            cells = [
                1 / run("Mixtral-8x7B", REPEATS[1], sets, misses, Setup(g, c, link=link)).seconds
                for c in CORES
            ]
            rate = format_rate(expert_bytes(g) / TRANSFER if link is None else link)
            rows.append((name, rate, *(f"{cell:.2f}" for cell in cells)))
    return markdown(("misses", "link", *(f"cores: {cores}" for cores in CORES)), rows)


def phi() -> str:
    """Phi-3.5-MoE: the same machine, smaller experts."""
    g, rows = shape("Phi-3.5-MoE"), []
    layers, count = len(g.moe_layers), slots(shape("Phi-3.5-MoE"))
    for cores in (4, 8, 24):
        found = {
            ways: speeds("Phi-3.5-MoE", covering(layers, count // ways, ways), Misses.FILL, setup)
            for setup in (Setup(g, cores),)
            for ways in (4, 6, 8, 10, 12, 14, 16)
        }
        best = max(found, key=lambda ways: found[ways][1])
        said = f"**{PHI_SPEED}**" if cores == MOST_CORES else "n/a"
        low, high = min(found[best]), max(found[best])
        rows.append((cores, f"({count // best}, {best})", said, f"{low:.2f} to {high:.2f}"))
    size = expert_bytes(g)
    return (
        f"An expert is {format_bytes(size)} (published: 152 MB), {count} of {g.expert_count} have a"
        f" slot,\na transfer takes {format_seconds(Setup(g, 1).costs.link)} at the same rate.\n\n"
        + markdown(("cores", "best (N, M) of ours", "published", "simulated"), rows)
    )
