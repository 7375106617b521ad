"""Which tensors of a checkpoint are experts: every published way to name them."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_DIGITS = 6  # of a layer or expert
# Draft heads for speculative decoding have experts of their own, which are not the model's.
_DRAFT = re.compile(r"(^|\.)mtp\.")
_LAYER = r"(?P<prefix>(?:.*\.)?(?:layers|blocks))\.(?P<layer>\d{1,6})\.(?P<at>(?:\w+\.)*?)"
_ONE = re.compile(_LAYER + r"experts\.(?P<expert>\d{1,6})\.(?P<name>\w+)(?:\.(?P<part>\w+))?$")
_FUSED = re.compile(
    _LAYER
    + r"(?:experts\.(?:mlp\.)?(?P<name>gate_up_proj|gate_proj|up_proj|down_proj|w1|v1|w2|fc1|fc2)"
    + r"(?P<part>_\w+|\.weight)?"
    + r"|(?P<linear>input_linear|output_linear)\.(?P<linear_part>\w+))$"
)
_NUMBERS = ("weight", "qweight", "blocks")  # parts that are the matrix, not its scales
# What each name holds, in the words of a geometry.
HOLDS = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "input_linear": ("gate_proj", "up_proj"),
    "gate_proj": ("gate_proj",),
    "w1": ("gate_proj",),
    "up_proj": ("up_proj",),
    "w3": ("up_proj",),
    "v1": ("up_proj",),
    "down_proj": ("down_proj",),
    "w2": ("down_proj",),
    "output_linear": ("down_proj",),
    "fc1": ("gate_proj", "up_proj"),
    "fc2": ("down_proj",),
}


class ExpertTensor(NamedTuple):
    """A tensor of one expert, or of all experts of a layer where `expert` is None."""

    prefix: str  # model.layers
    layer: int
    expert: int | None
    name: str  # of the projection, as the checkpoint calls it
    part: str  # weight, bias, scales, ...

    @property
    def kind(self) -> tuple[str, str]:
        """What all layers and experts have one of, quantised or not."""
        return self.name, "weight" if self.part in _NUMBERS else self.part


def find_experts(names: Iterable[str], layers: Iterable[int]) -> dict[str, ExpertTensor]:
    """The expert tensors among `names`, of the layers that have experts."""
    wanted = frozenset(layers)
    found = ((name, _match(name)) for name in names)
    return {name: tensor for name, tensor in found if tensor and tensor.layer in wanted}


def below_layer(name: str, prefix: str) -> tuple[int, str] | None:
    """Layer and the rest of a name under `prefix`, e.g. model.layers; None for other names."""
    layer, _, below = name.removeprefix(f"{prefix}.").partition(".")
    inside = name.startswith(f"{prefix}.") and layer.isdecimal() and len(layer) <= _DIGITS
    return (int(layer), below) if inside else None


def is_draft(name: str) -> bool:
    """Whether a tensor belongs to a draft head beside the model."""
    return _DRAFT.search(name) is not None


def resembling(names: Iterable[str]) -> Iterator[str]:
    """Names that speak of experts, matched or not."""
    return (name for name in sorted(names) if "expert" in name)


def renamed(name: str, layer: int, expert: int | None) -> str:
    """The name that the same tensor has in another layer, or of another expert."""
    name = re.sub(r"(layers|blocks)\.\d+\.", rf"\g<1>.{layer}.", name, count=1)
    return name if expert is None else re.sub(r"experts\.\d+\.", f"experts.{expert}.", name)


def _match(name: str) -> ExpertTensor | None:
    if is_draft(name):
        return None
    if (one := _ONE.fullmatch(name)) and one["name"] in HOLDS:
        part = one["part"] or "weight"
        return ExpertTensor(one["prefix"], int(one["layer"]), int(one["expert"]), one["name"], part)
    fused = _FUSED.fullmatch(name)
    if fused is None or "self_attention." in fused["at"] or "shared_mlp." in fused["at"]:
        return None
    part = (fused["part"] or fused["linear_part"] or "weight").strip("._")
    called = fused["name"] or fused["linear"]
    return ExpertTensor(fused["prefix"], int(fused["layer"]), None, called, part)
