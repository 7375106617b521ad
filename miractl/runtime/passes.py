"""What the layers of a model are told in one pass: looked at once, and the same for all of them."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle
from transformers.cache_utils import Cache

from miractl.runtime.sequences import CACHES

# What a layer may be told beside its states, without another answer.
PLAIN = {"position_embeddings", "position_ids", "use_cache", *CACHES}


@dataclass(slots=True)
class Pass:
    """One new token of each sequence; with `turned` 0 something else, for the stock layers."""

    angles: Any = None  # what the layers were told, as they were told it
    cache: Callable[[], Any] = lambda: None  # a reference: what is kept ends with its request
    mask: Any = None
    states: torch.Tensor | None = None  # that the last layer was given or gave
    shape: torch.Size = torch.Size()  # noqa: RUF009 - of the states, [B, T, H]
    tokens: int = 0  # B * T
    turned: int = 0  # numbers of each head
    where: tuple[int, int, int] = 0, 0, 0  # cosines and sines, and the stride of both
    is_paged: bool = False  # the cache has pages, not layers


class Passes:
    """The pass under way, and who listens to modules that are passed over."""

    def __init__(self) -> None:
        self.now = Pass()
        self._hooks: list[dict[int, Any]] = []
        self._checked = -1  # the next handle of a hook when there was none

    def watch(self, modules: Iterable[torch.nn.Module]) -> None:
        """Leave everything to the stock layers while somebody listens to one of these."""
        for module in modules:
            self._hooks += [module._forward_hooks, module._forward_pre_hooks]

    def look(self, x: torch.Tensor, cache: Any, told: dict[str, Any]) -> Pass:
        """What a layer is told with its states [B, T, H] and its cache."""
        angles, is_paged = told.get("position_embeddings"), not isinstance(cache, Cache)
        now = Pass(angles, mask=told.get("attention_mask"), states=x, shape=x.shape)
        if cache is not None:
            now.cache, now.is_paged = weakref.ref(cache), is_paged
        now.tokens = x.shape[0] * x.shape[1] if x.dim() == 3 else 0
        usual = now.tokens and cache is not None and _is_usual(x) and not self._is_heard()
        if usual and (is_paged or (x.shape[1] == 1 and _is_plain(told))):
            _turn(now)
        self.now = now
        return now

    def _is_heard(self) -> bool:
        upcoming = RemovableHandle.next_id  # rises with every hook of any module
        if upcoming == self._checked:
            return False
        if any(self._hooks):
            return True
        self._checked = upcoming
        return False


def _is_usual(x: torch.Tensor) -> bool:
    usual = x.dtype is torch.float32 and x.is_contiguous() and x.device.type == "cpu"
    return usual and not x.requires_grad


def _is_plain(told: dict[str, Any]) -> bool:
    """Whether nothing is asked for but the next token of each sequence, with nothing masked."""
    return all(value is None or value is False or name in PLAIN for name, value in told.items())


def _turn(now: Pass) -> None:
    """Find cosines and sines [B or 1, T, turned]; anything else turns nothing."""
    if not (isinstance(now.angles, tuple) and len(now.angles) == 2):
        return
    cos, sin = now.angles
    fits = (
        cos.dtype is sin.dtype is torch.float32
        and cos.dim() == 3
        and cos.shape == sin.shape
        and cos.is_contiguous()
        and sin.is_contiguous()
    )
    rows = cos.shape[0] * cos.shape[1] if fits else 0
    if rows in (1, now.tokens):
        now.turned = cos.shape[2]
        now.where = cos.data_ptr(), sin.data_ptr(), 0 if rows == 1 else now.turned
