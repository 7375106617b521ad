"""Routers by one call of the library, where stock modules make seven of torch's.

Which modules are such routers is found by asking them: a matrix, softmax, the most probable
experts, whose scores may be made to add up to one. What the library answers differs by rounding,
so this is for models whose numbers are rounded to codes anyway. Where two probabilities are equal
the stock module chooses.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from miractl.native.checks import raise_for
from miractl.native.kernels import Pool
from miractl.native.library import library

MOST_TOKENS = 4  # of a call: torch reads the matrix once for many
TIED = 4  # MIRA_TIED

Answer = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # logits [T, E], scores and ids [T, k]
Picked = tuple[torch.Tensor, torch.Tensor]  # scores and ids


class _Router(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("experts", "hidden", "top", "renormalized")]


class Router:
    """The matrix of a router, and how many experts it chooses."""

    def __init__(self, weight: torch.Tensor, top: int, renormalized: bool) -> None:
        """`weight` float32 [experts, hidden], which may move between calls."""
        self.hidden, self._weight, self._top = weight.shape[1], weight, top
        self._struct = _Router(*weight.shape, top, renormalized)
        self._address = ctypes.addressof(self._struct)
        self._call = library().mira_route

    def choose(self, x: torch.Tensor, pool: Pool | None) -> Answer | None:
        """Of x [T, hidden] without gaps; None where two experts are equal."""
        logits = torch.empty(x.shape[0], self._weight.shape[0])
        chosen = self.pick(x, pool, logits.data_ptr())
        return None if chosen is None else (logits, *chosen)

    def pick(self, x: torch.Tensor, pool: Pool | None, logits: int | None = None) -> Picked | None:
        """Scores and ids alone; logits go to an address, if there is one."""
        tokens, top = x.shape[0], self._top
        scores, ids = torch.empty(tokens, top), torch.empty(tokens, top, dtype=torch.int64)
        status = self._call(
            *(pool and pool.address, self._address, self._weight.data_ptr(), x.data_ptr(), tokens),
            *(logits, scores.data_ptr(), ids.data_ptr()),
        )
        if status == TIED:
            return None
        raise_for(status)
        return scores, ids


def install(model: torch.nn.Module, pool: Pool | None) -> int:
    """Compute every such router of a model by the library; returns how many there are."""
    found = 0
    for module in model.modules():
        router = find_router(module)
        if router is not None:
            # On the object, as for norms: hooks and look-ahead still find the module.
            module.forward = _forward(router, module.forward, pool)
            found += 1
    return found


@torch.no_grad()
def find_router(module: torch.nn.Module) -> Router | None:
    """What a module computes if that is such a router in float32; None if not."""
    own = dict(module.named_parameters())
    weight = own.pop("weight", None)
    if weight is None or own or isinstance(module, torch.nn.Linear | torch.nn.Embedding):
        return None
    if any(True for _ in module.children()) or any(True for _ in module.buffers()):
        return None
    if weight.dim() != 2 or weight.dtype is not torch.float32 or not weight.is_contiguous():
        return None
    if weight.device.type != "cpu":
        return None
    x = torch.randn(MOST_TOKENS, weight.shape[1], generator=torch.Generator().manual_seed(0))
    try:
        answer = module(x)
        if not _is_routing(answer, MOST_TOKENS, weight.shape[0]):
            return None
        flat = x / answer[0].abs().max().clamp(min=1)  # scores far from one: what is done shows
        asked = [(x, answer), (flat, module(flat))]
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return None  # it wants something else
    made = (Router(weight, answer[2].shape[1], renormalized) for renormalized in (True, False))
    return next((router for router in made if all(_answers(router, *one) for one in asked)), None)


def _is_routing(answer: Any, tokens: int, experts: int) -> bool:
    if not isinstance(answer, tuple) or len(answer) != 3:
        return False
    if not all(isinstance(part, torch.Tensor) and part.dim() == 2 for part in answer):
        return False
    logits, scores, ids = answer
    return (
        logits.shape == (tokens, experts)
        and logits.dtype is scores.dtype is torch.float32
        and ids.dtype is torch.int64
        and scores.shape == ids.shape
        and 0 < ids.shape[1] <= experts
    )


def _answers(router: Router, x: torch.Tensor, answer: Answer) -> bool:
    """Whether a router answers the same, within rounding."""
    found = router.choose(x, None)
    if found is None:
        return False
    (logits, scores, ids), size = found, answer[0].abs().max().item()
    near = torch.allclose(logits, answer[0], rtol=0, atol=1e-5 * max(size, 1e-6))
    return near and torch.equal(ids, answer[2]) and torch.allclose(scores, answer[1], rtol=1e-4)


def _forward(router: Router, stock: Callable[..., Answer], pool: Pool | None) -> Any:
    hidden = router.hidden

    def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Answer:
        usual = x.dtype is torch.float32 and x.dim() == 2 and x.shape[1] == hidden
        few = usual and len(x) <= MOST_TOKENS and x.is_contiguous() and not x.requires_grad
        chosen = router.choose(x, pool) if few and not (args or kwargs) else None
        return stock(x, *args, **kwargs) if chosen is None else chosen

    return forward
