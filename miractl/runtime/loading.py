"""Loading a transformers model whose experts stay on disk.

While the model is built its experts class is replaced, in the model's own module, by a subclass
that notes its shapes and drops its parameters before any memory is taken for them. The loader is
handed all other tensors, each read and decoded when it asks for it.
"""

from collections.abc import Iterable
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from miractl.checkpoint.dense import HEAD
from miractl.checkpoint.encoding import stored_tensors
from miractl.checkpoint.header import TensorRange
from miractl.checkpoint.packed import RECORDS, Manifest
from miractl.checkpoint.shards import tensor_ranges
from miractl.errors import MiractlError
from miractl.policy.keys import ExpertKey
from miractl.runtime.dense import DecodedTensor, DenseBlocks
from miractl.runtime.embedding import install, plain_table, stand_in
from miractl.runtime.files import CheckpointFiles, LazyTensor
from miractl.runtime.hollow import hollowed
from miractl.runtime.outline import Outline
from miractl.runtime.packed import PackedSource, fits
from miractl.runtime.source import CheckpointSource, ExpertSource, map_experts

TIED = (
    "download the checkpoint again; if the head is that of the embeddings, set "
    "tie_word_embeddings to true in config.json"
)


class Checkpoint:
    """The files behind an outline: its experts by themselves, everything else for the loader."""

    def __init__(self, folder: Path, outline: Outline, *, is_cached: bool = False) -> None:
        """`is_cached`: what is read once stays in the page cache, while there is room for it.

        Raises MiractlError for missing or broken files and for experts that are incomplete.
        """
        self.folder, self.outline = folder, outline
        self.ranges = tensor_ranges(folder)
        tensors = stored_tensors(self.ranges, outline.quantization)
        manifest = outline.manifest
        paths = {part.file for tensor in tensors.values() for part in tensor.ranges}
        paths |= {folder / RECORDS} if manifest else set()
        self._files = CheckpointFiles(paths, are_cached=is_cached)
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
