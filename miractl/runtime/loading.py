"""Loading a transformers model whose experts stay on disk.

During `from_pretrained` the model's experts class is replaced, in the model's own module, by a
subclass that notes its shapes and drops its parameters before any memory is taken for them; the
loader then has no place for expert weights and never reads them.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from miractl.checkpoint.shards import tensor_ranges
from miractl.errors import MiractlError
from miractl.runtime.arena import Shapes
from miractl.runtime.source import ExpertSource, expert_count, map_experts, own_parameters


class LayerRunner(Protocol):
    """What an experts module calls instead of its own kernel."""

    def run(
        self,
        layer: int,
        module: torch.nn.Module,
        x: torch.Tensor,
        ids: torch.Tensor,
        scores: torch.Tensor,
    ) -> torch.Tensor:
        """Compute x [T, H] by ids and scores [T, k] -> [T, H]."""


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


def read_outline(folder: Path) -> Outline:
    """Raises MiractlError for what is not a MoE model that the experts interface covers."""
    config = _config(folder)
    model_class = _model_class(config)
    with torch.device("meta"):
        model = model_class(config)
    found = [(name, module) for name, module in model.named_modules() if is_experts(module)]
    if not found:
        raise MiractlError(f"{config.model_type} has no experts that this version can manage")
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
    )


def open_source(folder: Path, outline: Outline) -> ExpertSource:
    """The experts of the checkpoint in `folder`."""
    tensors = tensor_ranges(folder)
    return ExpertSource(map_experts(outline.model, outline.config, tensors, list(outline.modules)))


def load_without_experts(
    folder: Path, outline: Outline, dtype: torch.dtype, device: torch.device, **options: Any
) -> PreTrainedModel:
    """The model with everything but its experts. Raises MiractlError for missing weights."""
    classes = {type(outline.model.get_submodule(name)) for name in outline.modules}
    model_class = type(outline.model)
    expert_names = [
        f"{name}.{parameter}" for name in outline.modules for parameter in outline.shapes
    ]
    with _hollow(classes), _ignored(model_class, expert_names):
        loaded: tuple[PreTrainedModel, dict[str, Any]] = model_class.from_pretrained(  # type: ignore[assignment]
            folder, dtype=dtype, device_map=device, output_loading_info=True, **options
        )
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise MiractlError(
            f"the checkpoint has no tensor for {missing[0]} ({len(missing)} missing)"
        )
    if device.type == "cpu":
        _own_memory(model)
    model.eval()
    return model


def attach(model: PreTrainedModel, outline: Outline, runner: LayerRunner) -> None:
    """Let every experts module of the loaded model call `runner`."""
    for layer, name in enumerate(outline.modules):
        module = model.get_submodule(name)
        # Not through Module.__setattr__: the runner is no submodule and no part of the state.
        object.__setattr__(module, "_miractl", (layer, runner))


def is_experts(module: torch.nn.Module) -> bool:
    """Whether transformers' experts interface covers this module."""
    return hasattr(type(module), "_apply_gate") and hasattr(module, "is_transposed")


def _own_memory(model: PreTrainedModel) -> None:
    """Copy weights that the loader left as views of the mapped file.

    A file that is cut or replaced under a running server must not take the process with it.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def _config(folder: Path) -> PreTrainedConfig:
    if not (folder / "config.json").is_file():
        raise MiractlError(f"{folder} has no config.json")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder)
    except (ValueError, OSError, KeyError) as error:
        raise MiractlError(f"{folder / 'config.json'}: {str(error).splitlines()[0]}") from None
    if getattr(config, "quantization_config", None):
        raise MiractlError(f"{folder} is quantised, which this version does not read")
    return config


def _model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    names = config.architectures or []
    model_class = getattr(transformers, names[0], None) if names else None
    if model_class is None:
        raise MiractlError(
            f"transformers {transformers.__version__} has no model class for {names}"
        )
    result: type[PreTrainedModel] = model_class
    return result


def _top_k(config: PreTrainedConfig) -> int:
    text = config.get_text_config()
    for name in ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts"):
        if isinstance(value := getattr(text, name, None), int):
            return value
    raise MiractlError(
        f"the config of {config.model_type} does not say how many experts a token uses"
    )


def _layer_index(module_name: str) -> int:
    numbers = [int(part) for part in module_name.split(".") if part.isdigit()]
    return numbers[0] if numbers else 0


def _hollow_class(experts_class: type[torch.nn.Module]) -> type[torch.nn.Module]:
    class Hollow(experts_class):  # type: ignore[misc,valid-type]
        def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
            with torch.device("meta"):
                super().__init__(config, *args, **kwargs)
            for name, _ in own_parameters(self):
                delattr(self, name)
            self._is_hf_initialized = True  # or the loader looks for weights to initialise

        def forward(
            self,
            hidden_states: torch.Tensor,
            top_k_index: torch.Tensor,
            top_k_weights: torch.Tensor,
        ) -> torch.Tensor:
            layer, runner = self._miractl
            result: torch.Tensor = runner.run(
                layer, self, hidden_states, top_k_index, top_k_weights
            )
            return result

    Hollow.__name__ = Hollow.__qualname__ = experts_class.__name__
    return Hollow


@contextmanager
def _hollow(classes: set[type[torch.nn.Module]]) -> Iterator[None]:
    for stock in classes:
        setattr(sys.modules[stock.__module__], stock.__name__, _hollow_class(stock))
    try:
        yield
    finally:
        for stock in classes:
            setattr(sys.modules[stock.__module__], stock.__name__, stock)


@contextmanager
def _ignored(model_class: type[PreTrainedModel], names: Sequence[str]) -> Iterator[None]:
    """Expert tensors in the checkpoint are expected: no report of unexpected keys."""
    before = model_class._keys_to_ignore_on_load_unexpected
    model_class._keys_to_ignore_on_load_unexpected = [*(before or []), *map(re.escape, names)]
    try:
        yield
    finally:
        model_class._keys_to_ignore_on_load_unexpected = before
