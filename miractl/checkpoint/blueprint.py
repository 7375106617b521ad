"""Every tensor that a model of this config has: name, shape and part, with no weights at hand."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from miractl.checkpoint.config import ALIASES, ModelConfig
from miractl.checkpoint.families import Family
from miractl.checkpoint.layers import (
    CHUNKED,
    FULL,
    SLIDING,
    layer_count,
    mixer_types,
    moe_layers,
)
from miractl.checkpoint.mixers import Mixer

_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|embeddings|wte|lm_head)\.")


class Role(StrEnum):
    """What part of the model a tensor is."""

    EMBEDDING = "embedding"  # token embedding and head
    OTHER = "other"  # attention, norms, routers, dense layers
    SHARED = "shared"  # experts that every token uses
    ATTENTION_EXPERT = "attention expert"  # used like experts, but never moved
    EXPERT = "expert"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of one layer kind: it is in each of `layers`, or once where that is None.

    An expert's tensor is there once for each expert; its name is that of the projection.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    layers: tuple[int, ...] | None
    counted: bool  # as a parameter; otherwise stored with the model only

    @property
    def size(self) -> int:
        """Elements of one."""
        return math.prod(self.shape)

    @property
    def copies(self) -> int:
        """How many layers have it."""
        return 1 if self.layers is None else len(self.layers)

    def full_names(self, prefix: str) -> Iterator[str]:
        """Its name in each layer, or its one name. `prefix` is that of the layers."""
        if self.layers is None:
            yield self.name
        else:
            yield from (f"{prefix}.{layer}.{self.name}" for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Blueprint:
    """All tensors of a model and the numbers they were made of."""

    prefix: str  # of a layer's tensors, e.g. model.layers
    layers: int
    moe_layers: tuple[int, ...]
    mixers: tuple[str, ...]  # type of each layer
    kv_elements: Mapping[str, int]  # per token and layer, by type of layer
    experts: int
    tensors: tuple[Tensor, ...]

    def of(self, role: Role) -> Iterator[Tensor]:
        """The tensors of one part."""
        return (tensor for tensor in self.tensors if tensor.role is role)

    def parameters(self, role: Role) -> int:
        """Parameters of one part, over all layers and experts."""
        each = self.experts if role is Role.EXPERT else 1
        return each * sum(t.size * t.copies for t in self.of(role) if t.counted)


class Dimensions:
    """The named dimensions of one config: `size("2*heads*head_dim")`, `holds("!q_lora")`."""

    def __init__(self, config: ModelConfig, family: Family, tied: bool) -> None:
        self._config = config
        self._family = family
        self._tied = tied

    def size(self, expression: str) -> int:
        """A sum of products. Raises MiractlError for a dimension that the config lacks."""
        return sum(math.prod(map(self._factor, term.split("*"))) for term in expression.split("+"))

    def holds(self, condition: str) -> bool:
        """Whether all of `a&!b` are set in the config."""
        return all(
            self._set(name.removeprefix("!")) is not name.startswith("!")
            for name in condition.split("&")
        )

    def _set(self, name: str) -> bool:
        if name == "untied":
            return not self._tied
        value = self._config.value(name)
        if type(value) is int:
            return self._config.optional(name) != 0
        return self._config.flag(name, self._family.absent.get(name))

    def _factor(self, name: str) -> int:
        if name.isdigit():
            return int(name)
        if name in self._family.sizes:
            return self.size(self._family.sizes[name])
        if name not in ALIASES:  # `dense`, `shared`: of a family that has none
            raise self._config.error(f"this family has no size for {name} layers")
        derived = self._derived(name)
        return self._config.number(name) if derived is None else derived

    def _derived(self, name: str) -> int | None:
        """What a dimension follows from where the config leaves it out or says `auto`."""
        value = self._config.value(name)
        if name == "head_dim" and value is None:
            return self.size("hidden") // self.size("heads")
        if name == "ssm_head_dim" and value in (None, "auto"):
            return self.size("ssm_expand*hidden") // self.size("ssm_heads")
        if name == "ssm_rank" and value in (None, "auto"):
            return math.ceil(self.size("hidden") / 16)
        return None


def draw(config: ModelConfig, family: Family, tied: bool) -> Blueprint:
    """The blueprint of a config. Raises MiractlError for what the config lacks or contradicts."""
    count = layer_count(config)
    types = mixer_types(config, family, count)
    sparse = moe_layers(config, family, count)
    experts = config.number("experts", least=2)
    dimensions = Dimensions(config, family, tied)
    kinds = {kind: _mixer(config, family, kind) for kind in dict.fromkeys(types)}
    every = range(count)
    # Where a layer is one block, those that are neither `mlp` nor `moe` feed nothing forward.
    dense = [i for i in every if types[i] == "mlp" or "mlp" not in family.mixers]
    places: list[tuple[str, Role, Iterable[int] | None]] = [
        (family.outer, Role.OTHER, None),
        (family.norms, Role.OTHER, every),
        *(
            (mixer.tensors, Role.OTHER, [i for i in every if types[i] == kind])
            for kind, mixer in kinds.items()
        ),
        (family.dense, Role.OTHER, [i for i in dense if i not in sparse]),
        (family.router, Role.OTHER, sparse),
        (family.shared, Role.SHARED, sparse),
        (family.expert, Role.EXPERT, sparse),
    ]
    tensors = tuple(
        tensor
        for table, role, layers in places
        if layers is None or tuple(layers)
        for tensor in _tensors(table.replace("{at}", family.at), dimensions, role, layers)
    )
    kv = {kind: dimensions.size(mixer.kv) for kind, mixer in kinds.items()}
    return Blueprint(family.prefix, count, sparse, types, kv, experts, tensors)


def _mixer(config: ModelConfig, family: Family, kind: str) -> Mixer:
    """Attention within a window has the tensors of full attention, unless the family says else."""
    if kind not in family.mixers and kind in (SLIDING, CHUNKED):
        kind = FULL
    if kind not in family.mixers:
        raise config.error(f"layers of the type {kind!r} are not known in this family")
    return family.mixers[kind]


def _tensors(
    table: str, dimensions: Dimensions, role: Role, layers: Iterable[int] | None
) -> Iterator[Tensor]:
    """The lines of a table that the config has."""
    own = None if layers is None else tuple(layers)
    for line in filter(None, table.splitlines()):
        text, _, condition = line.partition("?")
        name, *axes = text.split()
        if condition and not dimensions.holds(condition.strip()):
            continue
        shape = tuple(dimensions.size(axis) for axis in axes)
        plain = name.removeprefix("~")
        yield Tensor(plain, shape, _role(plain, role), own, counted=plain == name)


def _role(name: str, role: Role) -> Role:
    if _EMBEDDING.search(name):
        return Role.EMBEDDING
    return Role.ATTENTION_EXPERT if name.startswith("self_attention.experts.") else role
