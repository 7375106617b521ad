"""Experts modules without weights: they call the runtime where the stock ones multiply.

Two kinds of experts classes are known. Those of transformers' experts interface are called with
hidden states, ids and scores. Llama 4's is called with every token once for every expert, scaled by
its score, which is zero where the token did not choose the expert; only the rest is computed here.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from transformers import PreTrainedConfig

BATCHED = "Llama4TextExperts"


class LayerRunner(Protocol):
    """What a hollow experts module calls."""

    def run(
        self,
        layer: int,
        module: torch.nn.Module,
        x: torch.Tensor,
        ids: torch.Tensor,
        scores: torch.Tensor,
    ) -> torch.Tensor:
        """Compute x [T, H] by ids and scores [T, k] -> [T, H]."""


def is_experts(module: torch.nn.Module) -> bool:
    """Whether this module is known to hold experts that can be managed."""
    interface = hasattr(type(module), "_apply_gate") and hasattr(module, "is_transposed")
    return interface or type(module).__name__ == BATCHED


def looks_like_experts(module: torch.nn.Module) -> bool:
    """Whether its parameters are those of fused, gated experts; for classes nobody told us of."""
    own = dict(own_parameters(module))
    fused = all(name in own and own[name].dim() == 3 for name in ("gate_up_proj", "down_proj"))
    return fused and hasattr(module, "num_experts") and hasattr(module, "act_fn")


def own_parameters(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The fused parameters of an experts module, each [experts, ...]."""
    return list(module.named_parameters(recurse=False))


def expert_count(module: torch.nn.Module) -> int:
    """Experts of an experts module."""
    return int(module.num_experts)  # type: ignore[arg-type]


def attach(module: torch.nn.Module, layer: int, runner: LayerRunner) -> None:
    """Let a hollow experts module call `runner` as MoE layer `layer`."""
    # Not through Module.__setattr__: the runner is no submodule and no part of the state.
    object.__setattr__(module, "_miractl", (layer, runner))


@contextmanager
def hollowed(classes: set[type[torch.nn.Module]]) -> Iterator[None]:
    """While a model is built: its own module's experts classes are the hollow ones."""
    for stock in classes:
        kind = _Batched if stock.__name__ == BATCHED else RoutedExperts
        inherited: dict[str, Any] = {"__qualname__": stock.__qualname__}
        if kind is RoutedExperts and not hasattr(stock, "_apply_gate"):
            inherited["_apply_gate"] = gated
        hollow = type(stock.__name__, (kind, stock), inherited)
        setattr(sys.modules[stock.__module__], stock.__name__, hollow)
    try:
        yield
    finally:
        for stock in classes:
            setattr(sys.modules[stock.__module__], stock.__name__, stock)


class _Hollow(torch.nn.Module):
    """Builds the stock module without memory for its weights, then drops them."""

    _miractl: tuple[int, LayerRunner]

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        with torch.device("meta"):
            super().__init__(config, *args, **kwargs)
        for name, _ in own_parameters(self):
            delattr(self, name)
        self._is_hf_initialized = True  # or the loader looks for weights to initialise


def gated(self: Any, gate_up: torch.Tensor) -> torch.Tensor:
    """The usual gate: act(gate) x up."""
    gate, up = gate_up.chunk(2, dim=-1)
    result: torch.Tensor = self.act_fn(gate) * up
    return result


class RoutedExperts(_Hollow):
    """An experts class that is called with the routing. Those of the interface set the flags."""

    has_gate, has_bias, has_post_expert_norm, is_transposed = True, False, False, False

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Of hidden states [T, H], ids and scores [T, k]: [T, H]."""
        layer, runner = self._miractl
        return runner.run(layer, self, hidden_states, top_k_index, top_k_weights)


class _Batched(_Hollow):
    """Llama 4's experts class."""

    has_gate, has_bias, has_post_expert_norm, is_transposed = True, False, False, True
    _apply_gate = gated

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Of hidden states [E * T, H], zero where a token chose another expert: the same."""
        layer, runner = self._miractl
        experts = expert_count(self)
        x = hidden_states.view(experts, -1, hidden_states.shape[-1])  # [E, T, H]
        tokens, ids = x.ne(0).any(dim=-1).T.nonzero(as_tuple=True)  # chosen pairs, token by token
        out = torch.zeros_like(x)
        if len(ids):
            chosen, ones = x[ids, tokens], torch.ones(len(ids), 1, device=x.device, dtype=x.dtype)
            out[ids, tokens] = runner.run(layer, self, chosen, ids[:, None], ones)
        return out.view_as(hidden_states)
