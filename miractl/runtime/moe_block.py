"""The block of a router and its experts, for a few tokens: without the modules around them.

Which blocks can be is found by asking them: a router that the library computes, and hollow experts
that are called with its answer. Hooks on either, equal probabilities: the stock block's affair.
"""

from collections.abc import Callable
from typing import Any

import torch

from miractl.native.kernels import Pool
from miractl.runtime.hollow import RoutedExperts, attach, expert_count
from miractl.runtime.routers import MOST_TOKENS, Router, find_router

Rest = Callable[[torch.Tensor], torch.Tensor]  # states [T, H] to states of the same shape


class RoutedBlock:
    """Calls whoever runs a block's experts."""

    def __init__(
        self, block: torch.nn.Module, router: Router, gate: Any, experts: Any, pool: Pool | None
    ) -> None:
        self.passed = [block, *experts.modules()]
        self._stock, self._gate, self._experts = stock(block), gate, experts
        self._pick, self._pool = router.pick, pool

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Of x [T, H] without gaps."""
        gate, experts = self._gate, self._experts
        is_for_us = x.shape[0] <= MOST_TOKENS and not (
            gate._forward_hooks or gate._forward_pre_hooks_with_kwargs
        )
        for hear in gate._forward_pre_hooks.values():
            # Who listens is told; who wants the router to see something else gets the stock block.
            is_for_us = is_for_us and hear(gate, (x,)) is None
        chosen = self._pick(x, self._pool) if is_for_us else None
        if chosen is None:
            return self._stock(x)
        layer, runner = experts._miractl
        answer: torch.Tensor = runner.run(layer, experts, x, chosen[1], chosen[0])
        return answer


def stock(block: torch.nn.Module) -> Rest:
    """A module, called with states [1, T, H] as models do."""

    def rest(x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = block(x[None])
        return answer[0]

    return rest


@torch.no_grad()
def rest_of(block: torch.nn.Module, hidden: int, pool: Pool | None) -> Rest:
    """What computes a block: directly if it is such a block, else by calling it."""
    experts = [child for child in block.children() if isinstance(child, RoutedExperts)]
    gates = [child for child in block.children() if child not in experts]
    router = find_router(gates[0]) if len(experts) == len(gates) == 1 else None
    if router is None:
        return stock(block)
    direct = RoutedBlock(block, router, gates[0], experts[0], pool)
    x = torch.randn(MOST_TOKENS, hidden, generator=torch.Generator().manual_seed(0))
    before = vars(experts[0]).get("_miractl")
    attach(experts[0], 0, _Asked())
    try:
        answers = stock(block)(x), direct(x)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return stock(block)  # it wants something else
    finally:
        object.__setattr__(experts[0], "_miractl", before)
    near = torch.allclose(*answers, rtol=1e-4, atol=1e-4 * answers[0].abs().max().item())
    return direct if near else stock(block)


class _Asked:
    """In place of the experts: something in which states, ids and scores show."""

    def run(
        self,
        layer: int,
        module: torch.nn.Module,
        x: torch.Tensor,
        ids: torch.Tensor,
        scores: torch.Tensor,
    ) -> torch.Tensor:
        weights = (scores * (1 + ids) / expert_count(module)).sum(-1, keepdim=True)
        return x.roll(1, -1) * weights
