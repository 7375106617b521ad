"""A model without its weights: which modules hold experts, and of what shape these are."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from miractl.checkpoint.dense import HEAD
from miractl.checkpoint.encoding import stored_tensors
from miractl.checkpoint.packed import Manifest, is_packed, read_manifest
from miractl.errors import MiractlError
from miractl.runtime.arena import Shapes
from miractl.runtime.embedding import is_tied
from miractl.runtime.hollow import expert_count, is_experts, looks_like_experts, own_parameters


@dataclass(frozen=True, slots=True)
class Outline:
    """The stock model on the meta device: names and shapes, no weights."""

    config: PreTrainedConfig
    model: PreTrainedModel
    modules: tuple[str, ...]  # experts modules in layer order
    layers: tuple[int, ...]  # their real layer indices
    experts: int
    top_k: int
    kinds: tuple[Shapes, ...]  # of one expert's parameters: every shape that there is, once
    of_layer: tuple[int, ...]  # which of them each layer has
    quantization: Mapping[str, Any] | None  # the checkpoint's own description
    manifest: Manifest | None  # of a packed folder

    @property
    def shapes(self) -> Shapes:
        """Of every expert's parameters. Raises MiractlError where layers differ."""
        if len(self.kinds) > 1:
            raise MiractlError(
                f"{self.config.model_type} has experts of {len(self.kinds)} shapes, which have no"
                " common record"
            )
        return self.kinds[0]

    @property
    def embedding(self) -> str:
        """Name of the token embedding, which a tied head's block is made from."""
        own = self.model.get_input_embeddings()
        names = (name for name, module in self.model.named_modules() if module is own)
        return f"{next(names)}.weight"

    def leaves_embedding(self, device: torch.device, dense: Iterable[str]) -> bool:
        """Whether the embedding stays in its file; `dense` names what is computed as int8."""
        stored = self.manifest.dense.keys() & set(dense) if self.manifest else set()
        has_head = not is_tied(self.model) or any(name.endswith(HEAD) for name in stored)
        return device.type == "cpu" and has_head


def read_outline(folder: Path, experts_path: str | None = None) -> Outline:
    """Raises MiractlError for what is not a MoE model whose experts can be managed.

    `experts_path` is a pattern of module names, such as `model.layers.*.mlp.experts`, that says
    which experts modules to manage; None takes all.
    """
    config = _config(folder)
    quantization = _take_quantization(config)
    model_class = _model_class(config)
    try:
        with torch.device("meta"):
            model = model_class(config)
    except Exception as error:  # model code checks its config in many ways, or not at all
        raise MiractlError(
            f"transformers cannot build {config.model_type} from {folder / 'config.json'}: "
            f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        ) from error
    found = _find_experts(model, config.model_type, experts_path)
    shapes = [{p: tuple(t.shape[1:]) for p, t in own_parameters(module)} for _, module in found]
    kinds = [own for at, own in enumerate(shapes) if own not in shapes[:at]]
    counts = {expert_count(module) for _, module in found}
    if len(counts) > 1:
        numbers = ", ".join(map(str, sorted(counts)))
        raise MiractlError(
            f"{config.model_type} has layers of {numbers} experts, which is not supported"
        )
    return Outline(
        config=config,
        model=model,
        modules=tuple(name for name, _ in found),
        layers=tuple(_layer_index(name) for name, _ in found),
        experts=counts.pop(),
        top_k=_top_k(config),
        kinds=tuple(kinds),
        of_layer=tuple(map(kinds.index, shapes)),
        quantization=quantization,
        manifest=read_manifest(folder) if is_packed(folder) else None,
    )


Named = list[tuple[str, torch.nn.Module]]


def _find_experts(model: PreTrainedModel, model_type: str, path: str | None) -> Named:
    """The experts modules: known ones, or those at `path` that look like experts."""
    modules = list(model.named_modules())
    known = [(name, module) for name, module in modules if is_experts(module)]
    if path is None:
        if not known:
            raise MiractlError(f"{model_type} has no experts that this version can manage")
        return known
    able = known or [(name, module) for name, module in modules if looks_like_experts(module)]
    found = [(name, module) for name, module in able if fnmatchcase(name, path)]
    if not found:
        raise _no_match(model_type, path, able or [n for n in modules if "expert" in n[0].lower()])
    classes = {type(module) for _, module in found}
    left = [name for name, m in able if type(m) in classes and not fnmatchcase(name, path)]
    if left:
        raise MiractlError(f"{path!r} leaves out {left[0]}: all experts of a class go together")
    return found


def _no_match(model_type: str, path: str, candidates: Named) -> MiractlError:
    patterns = sorted({re.sub(r"\.\d+(?=\.|$)", ".*", name) for name, _ in candidates})
    return MiractlError(
        f"no experts module of {model_type} matches {path!r}",
        hint=" or ".join(f"--expert-layer-path '{pattern}'" for pattern in patterns[:3])
        or "miractl inspect MODEL",
    )


def _config(folder: Path) -> PreTrainedConfig:
    if not (folder / "config.json").is_file():
        raise MiractlError(f"{folder} has no config.json")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder)
    except Exception as error:  # its classes check their fields in many ways
        reason = " ".join(str(error).split())
        raise MiractlError(f"{folder / 'config.json'}: {reason}") from error
    return config


def _take_quantization(config: PreTrainedConfig) -> dict[str, Any] | None:
    """Remove the quantisation from the config: it would swap in other experts classes.

    Raises MiractlError for a method whose experts cannot be read.
    """
    quantization = getattr(config, "quantization_config", None)
    if not quantization:
        return None
    del config.quantization_config
    described = dict(quantization if isinstance(quantization, dict) else quantization.to_dict())
    stored_tensors({}, described)
    return described


def _model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    names = config.architectures or [""]
    model_class = getattr(transformers, str(names[0]), None)
    if model_class is None:
        raise MiractlError(
            f"transformers {transformers.__version__} has no model class for {names}"
        )
    result: type[PreTrainedModel] = model_class
    return result


def _top_k(config: PreTrainedConfig) -> int:
    text = config.get_text_config()
    for name in ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts"):
        value = getattr(text, name, None)
        if isinstance(value, list) and len(set(value)) == 1:  # hunyuan: one entry a layer
            value = value[0]
        if isinstance(value, int):
            return value
    raise MiractlError(
        f"the config of {config.model_type} does not say how many experts a token uses"
    )


def _layer_index(module_name: str) -> int:
    numbers = [int(part) for part in module_name.split(".") if part.isdigit()]
    return numbers[0] if numbers else 0
