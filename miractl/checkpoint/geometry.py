"""What a model is made of, from its config.json alone: layers, experts, parameters and bytes."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from miractl.checkpoint.blueprint import Blueprint, Role, Tensor, draw
from miractl.checkpoint.config import ALIASES, ModelConfig
from miractl.checkpoint.families import FAMILIES, ORIGINALS, REFUSED_KEYS, REFUSED_TYPES, Family
from miractl.checkpoint.formats import ELEMENT_BYTES, Format, read_format
from miractl.checkpoint.layers import CHUNKED, SLIDING
from miractl.checkpoint.record import Record, why_decoded

_WINDOWS = {SLIDING: "window", CHUNKED: "chunk"}  # type of layer: the key of what it sees
_ROUTER = re.compile(r"(^|\.)(gate|router|router\.\w+|shared_expert_gate)\.weight$|A_log$")

_IN_JSON = (
    *("family", "architecture", "layers", "moe_layers", "experts", "top_k", "shared_experts"),
    *("hidden", "expert_intermediate", "expert_shapes", "vocabulary", "context", "tied"),
    *("is_part", "format", "parameters", "active_parameters", "parameters_per_expert"),
    *("expert_parameters", "shared_parameters", "embedding_parameters", "non_expert_parameters"),
    *("bytes_per_expert", "expert_bytes", "non_expert_bytes", "sizes_from"),
    *("kv_elements_per_token", "kv"),
)


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that keep the same for each token. `window`: the most tokens kept, None for all."""

    layers: int
    elements: int  # a token and layer: keys and values, or what they are computed from
    window: int | None


@dataclass(frozen=True, slots=True)
class Geometry:
    """The numbers of one model. Bytes are as stored; None is what the files do not tell."""

    family: str  # model_type
    architecture: str | None
    blueprint: Blueprint
    top_k: int
    shared_experts: int  # of each layer with experts, used by every token
    hidden: int
    vocabulary: int
    context: int | None
    tied: bool  # the head is the token embedding
    is_part: bool  # the text model of a larger one; the rest is not counted
    format: Format
    kv: tuple[KvGroup, ...]
    bytes_per_expert: int | None
    non_expert_bytes: int | None
    sizes_from: str = "config"  # where the bytes come from: "config" or "headers"
    record: Record | None = None  # of a packed folder
    dense: bool = False  # attention and head are packed as int8

    @property
    def layers(self) -> int:
        """All layers."""
        return self.blueprint.layers

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Real indices of the layers with experts."""
        return self.blueprint.moe_layers

    @property
    def experts(self) -> int:
        """Routed experts of each layer that has any."""
        return self.blueprint.experts

    @property
    def expert_count(self) -> int:
        """Routed experts of all layers."""
        return len(self.moe_layers) * self.experts

    @property
    def expert_shapes(self) -> dict[str, tuple[int, ...]]:
        """Projections of one expert, each [out, in], and biases [out]."""
        return {tensor.name: tensor.shape for tensor in self.blueprint.of(Role.EXPERT)}

    @property
    def expert_intermediate(self) -> int:
        """Width of one expert."""
        return self.expert_shapes["down_proj"][1]

    @property
    def parameters_per_expert(self) -> int:
        """Parameters of one routed expert."""
        return sum(tensor.size for tensor in self.blueprint.of(Role.EXPERT))

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts."""
        return self.blueprint.parameters(Role.EXPERT)

    @property
    def shared_parameters(self) -> int:
        """Parameters of all shared experts."""
        return self.blueprint.parameters(Role.SHARED)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of embedding and head, once when tied."""
        return self.blueprint.parameters(Role.EMBEDDING)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return sum(map(self.blueprint.parameters, Role))

    @property
    def non_expert_parameters(self) -> int:
        """All parameters but those of the routed experts."""
        return self.parameters - self.expert_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses, embedding and head included."""
        sparse = self.expert_parameters + self.blueprint.parameters(Role.ATTENTION_EXPERT)
        return self.parameters - sparse * (self.experts - self.top_k) // self.experts

    @property
    def expert_bytes(self) -> int | None:
        """Bytes of all routed experts, as stored."""
        return None if self.bytes_per_expert is None else self.expert_count * self.bytes_per_expert

    @property
    def kv_elements_per_token(self) -> int:
        """Elements that a new token adds while no window is full."""
        return sum(group.layers * group.elements for group in self.kv)

    def kv_bytes(self, tokens: int, element_bytes: int = 2) -> int:
        """Bytes that one sequence of `tokens` keeps. State of fixed size is not in it."""
        return element_bytes * sum(
            group.layers * group.elements * min(tokens, group.window or tokens) for group in self.kv
        )

    def record_bytes(self, device: str) -> int | None:
        """Bytes of an expert that a device computes from its record; None where it does not."""
        if self.record is None or self.record.quantized is None:
            return None
        return None if why_decoded(self.record, device) else self.record.nbytes

    def expert_bytes_as(self, dtype: str) -> int:
        """Bytes of one expert in memory as `BF16`, `F16` or `F32`."""
        return self.parameters_per_expert * ELEMENT_BYTES[dtype]

    def to_json(self) -> dict[str, Any]:
        """Plain data: every number by its name; unknown is null."""
        return {
            **{name: getattr(self, name) for name in _IN_JSON},
            "moe_layers": list(self.moe_layers),
            "expert_shapes": {name: list(shape) for name, shape in self.expert_shapes.items()},
            "format": self.format.name,
            "dtype": self.format.dtype,
            "kv": [asdict(group) for group in self.kv],
        }


def read_geometry(folder: Path) -> Geometry:
    """The geometry of the model in `folder`, from config.json alone.

    Raises MiractlError for what is not a supported Mixture-of-Experts model, with the reason, and
    for facts that the config lacks or contradicts.
    """
    return geometry_of(ModelConfig.read(folder))


def geometry_of(config: ModelConfig, has_head: bool | None = None) -> Geometry:
    """As `read_geometry`. `has_head`: whether the weights hold a head, None if that is unknown."""
    name, family = _family(config)
    tied = _tied(config, family, has_head)
    blueprint = draw(config, family, tied)
    stored = read_format(config)
    top_k = config.number("top_k")
    if top_k > blueprint.experts:
        raise config.error(f"a token uses {top_k} experts of {blueprint.experts}")
    architectures = config.values.get("architectures")
    return Geometry(
        family=name,
        architecture=str(architectures[0])
        if isinstance(architectures, list) and architectures
        else None,
        blueprint=blueprint,
        top_k=top_k,
        shared_experts=_shared_experts(config, blueprint),
        hidden=config.number("hidden"),
        vocabulary=config.number("vocab"),
        context=config.optional("context", least=1),
        tied=tied,
        is_part=config.is_part,
        format=stored,
        kv=_kv(config, blueprint),
        bytes_per_expert=_total(stored.expert_bytes(t.shape) for t in blueprint.of(Role.EXPERT)),
        non_expert_bytes=_total(
            _other_bytes(tensor, stored) for tensor in blueprint.tensors if tensor.role != "expert"
        ),
    )


def _family(config: ModelConfig) -> tuple[str, Family]:
    """Name and row of the config's family, after all reasons to refuse it."""
    kind = config.values.get("model_type")
    for key, reason in REFUSED_KEYS.items():
        if config.values.get(key):
            raise config.error(f"{kind or 'the model'} {reason} ({key})")
    if kind in REFUSED_TYPES:
        raise config.error(f"{kind} {REFUSED_TYPES[kind]}")
    if (config.optional("experts") or 0) < 2:
        said = [f"{key} is {json.dumps(config.values[key])}" for key in _expert_keys(config)]
        why = said[0] if said else "no key says how many experts"
        raise config.error(f"{why}: not a Mixture-of-Experts model")
    if (uneven := config.uneven(("experts", "intermediate", "moe_intermediate"))) is not None:
        raise uneven
    if kind is None:
        for name, (keys, family) in ORIGINALS.items():
            if keys <= config.values.keys():
                return name, family
        raise config.error("model_type is not there")
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise config.unknown_family(kind, known)
    return kind, FAMILIES[kind]


def _expert_keys(config: ModelConfig) -> list[str]:
    return [key for key in ALIASES["experts"] if key in config.values]


def _tied(config: ModelConfig, family: Family, has_head: bool | None) -> bool:
    if config.value("tied") is not None:
        return config.flag("tied")
    if "tied" in family.absent:
        return family.absent["tied"]
    if has_head is None:
        raise config.missing("tied")
    return not has_head


def _shared_experts(config: ModelConfig, blueprint: Blueprint) -> int:
    """So many as the config counts, or one where it only says how large."""
    if not any(True for _ in blueprint.of(Role.SHARED)):
        return 0
    return config.optional("shared_experts") or 1


def _kv(config: ModelConfig, blueprint: Blueprint) -> tuple[KvGroup, ...]:
    groups = []
    for kind, elements in blueprint.kv_elements.items():
        window = config.optional(_WINDOWS[kind]) if kind in _WINDOWS else None
        if elements:
            groups.append(KvGroup(blueprint.mixers.count(kind), elements, window or None))
    return tuple(groups)


def _other_bytes(tensor: Tensor, stored: Format) -> int | None:
    name = tensor.name
    is_linear = tensor.layers is not None and len(tensor.shape) == 2 and not _ROUTER.search(name)
    one = stored.other_bytes(name, tensor.shape, is_linear=is_linear)
    return None if one is None else one * tensor.copies


def _total(each: Iterable[int | None]) -> int | None:
    """The sum, None if one of them is unknown."""
    found = list(each)
    known = [size for size in found if size is not None]
    return sum(known) if len(known) == len(found) else None
