"""Gate look-ahead: the next layer's own router, asked early.

The hidden state that enters a layer's experts is close to the one that will enter the next layer's
router, because each layer adds little to the residual stream. The answer is a guess: it decides
what is prefetched, never what is computed.
"""

import inspect
import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from miractl.policy.prediction import Probabilities

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
    """Predicts a layer by its own router, [layers] of them."""

    mode = "lookahead"

    def __init__(self, routers: Sequence[Router], experts: int) -> None:
        self._routers, self._experts = routers, experts

    @torch.no_grad()
    def predict(
        self, layer: int, x: torch.Tensor, ids: npt.NDArray[np.int64]
    ) -> Probabilities | None:
        """Share of the next router's weight on each expert, [experts]; x [T, H].

        None after the last layer.
        """
        if layer + 1 == len(self._routers):
            return None
        answer = [part for part in self._routers[layer + 1](x) if isinstance(part, torch.Tensor)]
        indices = next(part for part in answer if not part.is_floating_point())
        chosen = indices.reshape(-1).cpu().numpy()
        weights = next(
            (w for w in answer if w.is_floating_point() and w.shape == indices.shape), None
        )
        shares = None if weights is None else weights.reshape(-1).float().cpu().numpy()
        wanted = np.bincount(chosen, weights=shares, minlength=self._experts)
        result: Probabilities = wanted / wanted.sum()
        return result
