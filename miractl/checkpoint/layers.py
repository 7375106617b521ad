"""Which layers have experts, and what each layer mixes tokens with, by the model's real indices.

A config may state both a list and a rule; they have to agree.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from miractl.checkpoint.config import ModelConfig

if TYPE_CHECKING:
    from miractl.checkpoint.families import Family

FULL, LINEAR, SLIDING, CHUNKED = (
    *("full_attention", "linear_attention", "sliding_attention", "chunked_attention"),
)
MOST_LAYERS = 4096

# Words that older configs use for the same layer, and the letters of a pattern.
_WORDS = {"attention": FULL, "mamba": LINEAR, "indexed_attention": FULL, "hybrid": FULL}
_LETTERS = {"M": LINEAR, "E": "moe", "*": FULL, "-": "mlp"}
_NUMBERS = {0: LINEAR, 1: FULL}

# A rule by the key that states it: whether layer i has experts, n being the key's value.
_RULES: dict[str, Callable[[int, int], bool]] = {
    "dense_first": lambda i, n: i >= n,
    "sparse_step": lambda i, n: (i + 1) % n == 0,
    "moe_frequency": lambda i, n: i % n == 0,
    "moe_interleave": lambda i, n: (i + 1) % n == 0,
    "moe_interval": lambda i, n: (i + 1) % n == 0,
    "moe_start": lambda i, n: i >= n,
}
_FROM_0 = ("dense_first", "moe_start")


def layer_count(config: ModelConfig) -> int:
    """All layers. Raises MiractlError where a list of layers has another length."""
    blocks = _block_types(config)
    stated = config.optional("layers", least=1)
    if blocks is not None and stated not in (None, len(blocks)):
        raise config.error(f"num_hidden_layers is {stated}, the list of blocks has {len(blocks)}")
    count = stated if stated is not None else len(blocks) if blocks else config.number("layers")
    if count > MOST_LAYERS:
        raise config.error(f"{count:,} layers, expected at most {MOST_LAYERS:,}")
    return count


def moe_layers(config: ModelConfig, family: "Family", count: int) -> tuple[int, ...]:
    """Indices of the layers that have experts."""
    found = {
        source: layers
        for source, layers in (
            ("mlp_layer_types", _by_word(config, count)),
            ("the list of MoE layers", config.numbers("moe_layers")),
            ("the list of blocks", _by_block(config)),
            ("the rule", _by_rule(config, count)),
        )
        if layers is not None
    }
    if not found:
        if family.needs:
            raise config.missing(family.needs)
        return tuple(range(count))
    (first, layers), *others = found.items()
    for source, other in others:
        if other != layers:
            raise config.error(f"{first} and {source} disagree on which layers have experts")
    if not layers or layers[0] < 0 or layers[-1] >= count or layers != sorted(set(layers)):
        raise config.error(f"{first} gives {layers[:8]} as the layers with experts, of {count}")
    return tuple(layers)


def mixer_types(config: ModelConfig, family: "Family", count: int) -> tuple[str, ...]:
    """What each layer mixes tokens with: one of the words above, or a family's own."""
    found = [types for types in _stated_types(config, family, count) if types is not None]
    if not found:
        if len(family.mixers) > 1:
            raise config.missing("mixer_types")
        sliding = config.flag("use_window") and config.optional("window")
        return (SLIDING if sliding else FULL,) * count
    if any(types != found[0] for types in found[1:]):
        raise config.error("two keys disagree on which layers attend to everything")
    if len(found[0]) != count:
        raise config.error(f"layer_types has {len(found[0])} entries for {count} layers")
    return tuple(found[0])


def _stated_types(config: ModelConfig, family: "Family", count: int) -> list[list[str] | None]:
    layers = range(count)
    words = config.words("mixer_types")
    numbers = config.numbers("mixer_numbers")
    interval, period = config.value("full_interval"), config.optional("full_period", least=1)
    offset = config.optional("full_offset")
    full = config.numbers("full_layers")
    from_1 = config.numbers("full_layers_from_1")
    other = family.other_mixer

    def where(attends: Callable[[int], bool]) -> list[str]:
        return [FULL if attends(i) else other for i in layers]

    stated = [
        [_WORDS.get(word, word) for word in words] if words else _block_types(config),
        [_NUMBERS.get(n, str(n)) for n in numbers] if numbers else None,
        where(lambda i: i % (period or 1) == offset) if period and offset is not None else None,
        where(lambda i: i in full) if full is not None else None,
        where(lambda i: i + 1 in from_1) if from_1 is not None else None,
    ]
    # An interval is what a list was made from: only of use where there is no list.
    if not any(stated) and type(interval) is int and interval > 0:
        stated.append(where(lambda i: (i + 1) % interval == 0))
    if not any(stated) and family.pattern:
        stated.append([family.pattern[i % len(family.pattern)] for i in layers])
    return stated


def _block_types(config: ModelConfig) -> list[str] | None:
    """Layers of models where a layer is one block: attention, a state space, an MLP or experts."""
    words, pattern = config.words("mixer_types"), config.value("mixer_pattern")
    if isinstance(pattern, str) and words is None:
        words = [_LETTERS.get(letter, letter) for letter in pattern]
    if words is None or "moe" not in words:
        return None
    return [_WORDS.get(word, word) for word in words]


def _by_block(config: ModelConfig) -> list[int] | None:
    blocks = _block_types(config)
    return None if blocks is None else [i for i, word in enumerate(blocks) if word == "moe"]


def _by_word(config: ModelConfig, count: int) -> list[int] | None:
    words = config.words("mlp_types")
    if words is None:
        return None
    if len(words) != count:
        raise config.error(f"mlp_layer_types has {len(words)} entries for {count} layers")
    return [i for i, word in enumerate(words) if word == "sparse"]


def _by_rule(config: ModelConfig, count: int) -> list[int] | None:
    tests: list[Callable[[int], bool]] = []
    for key, rule in _RULES.items():
        n = config.optional(key, least=0 if key in _FROM_0 else 1)
        if n is not None:
            tests.append(lambda i, rule=rule, n=n: rule(i, n))  # type: ignore[misc]
    if dense := config.numbers("dense_layers"):
        tests.append(lambda i: i not in dense)
    period, offset = config.optional("moe_period", least=1), config.optional("moe_offset")
    if period is not None and offset is not None:
        tests.append(lambda i: i % period == offset)
    end = config.optional("moe_end", least=-1)
    if end is not None and end != -1:
        tests.append(lambda i: i <= end)
    return [i for i in range(count) if all(test(i) for test in tests)] if tests else None
