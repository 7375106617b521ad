"""Gate look-ahead: the next layer's own router, asked early.

The hidden state that enters a layer's experts is close to the one that will enter the next layer's
router, because each layer adds little to the residual stream. The answer is a guess: it decides
what is prefetched, never what is computed.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from miractl.native.predictor import Foretold
from miractl.policy.prediction import Probabilities
from miractl.policy.routing import Routed

INT64, FLOAT32 = torch.int64, torch.float32  # looked up once
Router = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def router_of(block: torch.nn.Module) -> torch.nn.Module | None:
    """The module beside an experts module that looks like its router."""
    children = block.children()
    return next((c for c in children if re.search("Router|Gate", type(c).__name__)), None)


def find_router(block: torch.nn.Module, sample: torch.Tensor) -> Router | None:
    """The router beside an experts module, as a function of hidden states [T, H]; None if unknown.

    Some routers take more than the hidden states, held by their block under the argument's name
    (afmoe, minimax_m2: the load-balancing bias), some want [1, T, H]. Each is tried on `sample`
    [T, H]: a router that is called in another way must not be found out while serving.
    """
    router = router_of(block)
    if router is None:
        return None
    extra = list(inspect.signature(type(router).forward).parameters)[2:]
    if not all(hasattr(block, name) for name in extra):
        return None

    def flat(hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        answer: tuple[torch.Tensor, ...] = router(hidden, *(getattr(block, n) for n in extra))
        return answer

    def batched(hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return flat(hidden[None])

    return next((way for way in (flat, batched) if _answers(way, sample)), None)


@torch.no_grad()
def _answers(router: Router, sample: torch.Tensor) -> bool:
    """Whether the router names experts, [T, k], for hidden states `sample` [T, H]."""
    try:
        answer = router(sample)
    except (ValueError, TypeError, RuntimeError, IndexError):
        return False
    return any(
        isinstance(part, torch.Tensor)
        and not part.is_floating_point()
        and part.reshape(-1, part.shape[-1]).shape[0] == len(sample)
        for part in answer
    )


class Lookahead:
    """Predicts a layer by its own router, [layers] of them.

    A token's guess is 1/2 to 1 for the experts that the router chooses, by their weight, and 0 for
    the others: an order, of which the record of such guesses makes probabilities.
    """

    mode = "lookahead"

    def __init__(self, routers: Sequence[Router], experts: int) -> None:
        self._routers = routers
        self._layer, self._hidden = 0, torch.empty(0)
        self._places: tuple[int, int | None] | None = None
        self._guess: Probabilities = np.zeros(experts)
        self._told = Foretold(self._guess)
        self._layers, self._count = len(routers), 0  # and of ids that a router named last

    def observe(self, step: Routed, hidden: torch.Tensor) -> None:
        """Keep the states [T, H] until they are asked about."""
        self._layer, self._hidden = step.layer, hidden

    def guess(self, ahead: int) -> Probabilities | None:
        """By the router of the layer so many further on; None after the last.

        It is asked in the mode of the step, without gradients. Overwritten by the next guess.
        """
        layer = self._layer + ahead
        if layer >= self._layers:
            return None
        answer, told = self._routers[layer](self._hidden), self._told
        where, beside = self._places or _places(answer)
        ids = plain(answer[where], INT64)
        weights = None if beside is None else plain(answer[beside], FLOAT32)
        if ids.numel() != self._count:
            self._places, self._count = (where, beside), ids.numel()
            told.shape(ids.numel() // ids.shape[-1], ids.shape[-1])
        told.take(ids.data_ptr(), 0 if weights is None else weights.data_ptr())
        return self._guess

    def fade(self) -> None:
        """There is nothing that it has learned."""


def _places(answer: Sequence[Any]) -> tuple[int, int | None]:
    """Where in a router's answer the ids [..., k] are, and their weights; None without weights."""
    tensors = {at: part for at, part in enumerate(answer) if isinstance(part, torch.Tensor)}
    ids = next(at for at, part in tensors.items() if not part.is_floating_point())
    weights = (
        at
        for at, part in tensors.items()
        if part.is_floating_point() and part.shape == tensors[ids].shape
    )
    return ids, next(weights, None)


def plain(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In memory of the CPU, without gaps."""
    if values.dtype is dtype and values.is_cpu and values.is_contiguous():
        return values
    return values.to("cpu", dtype).contiguous()
