"""What each experts module of a stock model was given and gave, to be asked of a hollow one."""

from dataclasses import dataclass
from typing import Any

import torch

from miractl.runtime.outline import Outline


@dataclass(frozen=True, slots=True)
class Recorded:
    """One experts module's inputs, as its class takes them, and its output."""

    module: str
    inputs: tuple[Any, ...]
    output: torch.Tensor


@torch.no_grad()
def record_layers(model: torch.nn.Module, outline: Outline, prompt: torch.Tensor) -> list[Recorded]:
    """Run a stock model on a prompt [1, n] and keep what passed through its experts modules."""
    found: list[Recorded] = []

    def keep(name: str) -> Any:
        def hook(module: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            copies = tuple(value.clone() for value in inputs)
            found.append(Recorded(name, copies, output.clone()))

        return hook

    hooks = [model.get_submodule(n).register_forward_hook(keep(n)) for n in outline.modules]
    try:
        model(prompt)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def relative_error(model: torch.nn.Module, recorded: Recorded) -> float:
    """|difference| / |output| of the same module of another model, Frobenius norms."""
    output = model.get_submodule(recorded.module)(*recorded.inputs)
    norm = float(recorded.output.norm())
    return float((output - recorded.output).norm()) / norm if norm else float(output.norm())
