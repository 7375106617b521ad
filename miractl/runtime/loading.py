"""Loading a transformers model whose experts stay on disk.

While the model is built its experts class is replaced, in the model's own module, by a subclass
that notes its shapes and drops its parameters before any memory is taken for them. The loader is
handed all other tensors, each read and decoded when it asks for it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
import transformers
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedModel

from miractl.checkpoint.dense import HEAD
from miractl.checkpoint.encoding import stored_tensors
from miractl.checkpoint.header import TensorRange
from miractl.checkpoint.packed import RECORDS, Manifest, is_packed, read_manifest
from miractl.checkpoint.shards import tensor_ranges
from miractl.errors import MiractlError
from miractl.policy.keys import ExpertKey
from miractl.runtime.arena import Shapes
from miractl.runtime.dense import DecodedTensor, DenseBlocks
from miractl.runtime.embedding import install, is_tied, plain_table, stand_in
from miractl.runtime.files import CheckpointFiles, LazyTensor
from miractl.runtime.hollow import (
    expert_count,
    hollowed,
    is_experts,
    looks_like_experts,
    own_parameters,
)
from miractl.runtime.packed import PackedSource, fits
from miractl.runtime.source import CheckpointSource, ExpertSource, map_experts

TIED = (
    "download the checkpoint again; if the head is that of the embeddings, set "
    "tie_word_embeddings to true in config.json"
)


@dataclass(frozen=True, slots=True)
class Outline:
    """The stock model on the meta device: names and shapes, no weights."""

    config: PreTrainedConfig
    model: PreTrainedModel
    modules: tuple[str, ...]  # experts modules in layer order
    layers: tuple[int, ...]  # their real layer indices
    experts: int
    top_k: int
    shapes: Shapes  # of one expert's parameters
    quantization: Mapping[str, Any] | None  # the checkpoint's own description
    manifest: Manifest | None  # of a packed folder

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
    counts = {expert_count(module) for _, module in found}
    if len(counts) > 1 or any(other != shapes[0] for other in shapes):
        raise MiractlError(
            f"{config.model_type} has experts of unequal shapes, which are not supported"
        )
    return Outline(
        config=config,
        model=model,
        modules=tuple(name for name, _ in found),
        layers=tuple(_layer_index(name) for name, _ in found),
        experts=counts.pop(),
        top_k=_top_k(config),
        shapes=shapes[0],
        quantization=quantization,
        manifest=read_manifest(folder) if is_packed(folder) else None,
    )


class Checkpoint:
    """The files behind an outline: its experts by themselves, everything else for the loader."""

    def __init__(self, folder: Path, outline: Outline) -> None:
        """Raises MiractlError for missing or broken files and for experts that are incomplete."""
        self.folder, self.outline = folder, outline
        self.ranges = tensor_ranges(folder)
        tensors = stored_tensors(self.ranges, outline.quantization)
        manifest = outline.manifest
        paths = {part.file for tensor in tensors.values() for part in tensor.ranges}
        self._files = CheckpointFiles(paths | ({folder / RECORDS} if manifest else set()))
        self.source: ExpertSource
        if manifest is not None:
            _refuse_other_experts(manifest, outline)
            self.source, self._others = PackedSource(manifest, self._files), tensors
            return
        experts = map_experts(outline.model, outline.config, tensors, list(outline.modules))
        self.source = CheckpointSource(self._files, experts.pieces)
        self._others = {n: t for n, t in tensors.items() if n not in experts.names}

    @property
    def other_ranges(self) -> dict[str, TensorRange]:
        """Everything but the experts, as the files name it: codes and scales by themselves."""
        kept = {part for tensor in self._others.values() for part in tensor.ranges}
        return {name: part for name, part in self.ranges.items() if part in kept}

    def ranges_of(self, names: Iterable[str]) -> set[TensorRange]:
        """Where the named tensors are, codes and scales; names that are not there are left out."""
        own = (self._others[name] for name in names if name in self._others)
        return {part for tensor in own for part in tensor.ranges}

    def numbers(self, name: str) -> torch.Tensor:
        """One tensor that is no expert's. Raises MiractlError, KeyError."""
        return self._files.load(self._others[name])

    def load_others(
        self,
        dtype: torch.dtype,
        device: torch.device,
        dense: DenseBlocks | None = None,
        **options: Any,
    ) -> PreTrainedModel:
        """The model with everything but its experts; of that, `dense` takes what becomes int8.

        Raises MiractlError for missing weights.
        """
        outline, state = self.outline, self._lazy()
        classes = {type(outline.model.get_submodule(name)) for name in outline.modules}
        if dense is not None:
            stored = outline.manifest is not None and outline.manifest.dense
            take = dense.read if stored else dense.lazy
            state |= take(self._files, self._others, dtype)
        table = None
        if outline.leaves_embedding(device, dense.shapes if dense else ()):
            table = plain_table(self._others.get(outline.embedding))
        if table is not None:
            state[outline.embedding] = stand_in(table, dtype)
        with hollowed(classes):
            model = self._load(state, dtype=dtype, device_map=device, **options)
        if table is not None:
            install(model, outline.embedding, table, self._files)
        if dense is not None:
            dense.install(model)
        return model

    def load_stock(self, dtype: torch.dtype) -> PreTrainedModel:
        """The stock model, all in memory, whose experts have the numbers that slots would get."""
        if self.outline.manifest is None:
            loaded: Any = type(self.outline.model).from_pretrained(self.folder, dtype=dtype)
            stock: PreTrainedModel = loaded.eval()
            return stock
        experts = {
            f"{module}.{parameter}": LayerTensor(self, layer, parameter)
            for layer, module in enumerate(self.outline.modules)
            for parameter in self.outline.shapes
        }
        return self._load({**self._lazy(), **experts}, dtype=dtype)

    def _lazy(self) -> dict[str, Any]:
        """All tensors but the experts; int8 matrices as numbers, a tied head's left out."""
        found: dict[str, Any] = {n: LazyTensor(self._files, t) for n, t in self._others.items()}
        manifest = self.outline.manifest
        for name, shape in (manifest.dense if manifest else {}).items():
            tied = name.endswith(HEAD) and self.outline.config.tie_word_embeddings
            if tied:
                del found[name]
            else:
                found[name] = DecodedTensor(self._files, self._others[name], shape)
        return found

    def _load(self, state: dict[str, Any], **options: Any) -> PreTrainedModel:
        loaded: Any = type(self.outline.model).from_pretrained(
            None,
            config=self.outline.config,
            state_dict=state,
            output_loading_info=True,
            **options,
        )
        model, info = loaded
        if missing := sorted(info["missing_keys"]):
            raise MiractlError(
                f"the checkpoint has no tensor for {missing[0]} ({len(missing)} missing)",
                hint=TIED if missing == ["lm_head.weight"] else "download the checkpoint again",
            )
        if (self.folder / "generation_config.json").exists():
            model.generation_config = _generation_config(self.folder)
        result: PreTrainedModel = model.eval()
        return result


class LayerTensor:
    """One parameter of all experts of a layer: read when the loader indexes it."""

    def __init__(self, checkpoint: Checkpoint, layer: int, parameter: str) -> None:
        self._checkpoint, self._layer, self._parameter = checkpoint, layer, parameter

    def __getitem__(self, index: EllipsisType) -> torch.Tensor:
        outline, source = self._checkpoint.outline, self._checkpoint.source
        slot = {name: torch.empty(shape) for name, shape in outline.shapes.items()}
        all_ = torch.empty(outline.experts, *outline.shapes[self._parameter])
        for expert in range(outline.experts):
            source.read(ExpertKey(self._layer, expert), slot)
            all_[expert] = slot[self._parameter]
        return all_[index]


def _refuse_other_experts(manifest: Manifest, outline: Outline) -> None:
    """Raise MiractlError unless the records are experts of this model and fill its slots."""
    same = (manifest.layers, manifest.experts) == (outline.layers, outline.experts)
    if not same or not fits(manifest.record, outline.shapes):
        raise MiractlError(
            f"{manifest.folder}: the records are not experts of the model in config.json",
            hint="pack the model again",
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


def _generation_config(folder: Path) -> GenerationConfig:
    """Raises MiractlError for end-of-text ids that are none."""
    try:
        config = GenerationConfig.from_pretrained(folder)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise MiractlError(f"{folder / 'generation_config.json'}: {reason}") from error
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    if not all(end is None or type(end) is int for end in ends):
        raise MiractlError(
            f"{folder / 'generation_config.json'}: eos_token_id is {config.eos_token_id!r}, no id"
        )
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
