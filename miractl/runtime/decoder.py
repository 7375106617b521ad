"""Decoder layers of one new token a sequence: all before the experts by one call of the library.

Which layers can be is found by asking them: two norms, attention whose matrices are int8 blocks,
and one more module, that together answer within rounding as the usual formula does. Prompts, masks,
other caches, hooks on what would be passed over: everything else is the stock layer's affair.
"""

import ctypes
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache

from miractl.native.attention import AttentionHalf, HeadShape, Kept
from miractl.native.kernels import Pool
from miractl.native.library import short_calls
from miractl.runtime import paged
from miractl.runtime.dense import DenseLinear
from miractl.runtime.kv import GrowingLayer
from miractl.runtime.moe_block import Rest, rest_of, stock
from miractl.runtime.norms import find_norm
from miractl.runtime.passes import Pass, Passes
from miractl.runtime.sequences import CACHES

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
NORMS = ("q_norm", "k_norm")
FIRST, PROMPT = 1000, 5  # position and tokens of what layers are asked
REFUSALS = (RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError)


def install(model: torch.nn.Module, pool: Pool | None) -> int:
    """Compute every such layer of a model so; returns how many there are."""
    passes, found = Passes(), 0
    for module in list(model.modules()):
        step = find_step(module, pool)
        if step is not None:
            step.passes = passes
            passes.watch([*step.passed, *getattr(step.rest, "passed", ())])
            # On the object, as for norms: hooks and whoever asks for its class find the module.
            module.forward = step
            found += 1
    return found


@torch.no_grad()
def find_step(module: torch.nn.Module, pool: Pool | None = None) -> "LayerStep | None":
    """What computes a layer for new tokens, if it is such a layer."""
    children = list(module.children())
    attention = next(filter(_is_attention, children), None)
    norms = [child for child in children if find_norm(child) is not None]
    others = [child for child in children if child is not attention and child not in norms]
    if attention is None or len(norms) != 2 or len(others) != 1:
        return None
    for before, after in itertools.permutations(norms):
        for half in _halves(attention, before, after):
            passed = before, attention, after
            if _answers_alike(LayerStep(module, passed, stock(others[0]), half, pool), others[0]):
                rest = rest_of(others[0], half.hidden, pool)
                return LayerStep(module, passed, rest, half, pool)
    return None


class LayerStep:
    """The forward pass of a layer: new tokens by the library, all else by the stock module."""

    def __init__(
        self,
        layer: torch.nn.Module,
        passed: tuple[torch.nn.Module, ...],
        rest: Rest,
        half: AttentionHalf,
        pool: Pool | None,
    ) -> None:
        """`passed` are the modules that are passed over, attention in their middle."""
        self.stock: Callable[..., Any] = layer.forward
        self.half, self.rest = half, rest
        attention: Any = passed[1]
        self.index: int = attention.layer_idx
        self.passed = [module for part in passed for module in part.modules()]
        self.passes = Passes()
        self._pool, self._run, self._add = pool, half.run_at, short_calls().mira_add

    def __call__(self, hidden_states: torch.Tensor, *args: Any, **told: Any) -> torch.Tensor:
        """As the layer: states [B, T, H] after attention and what follows it."""
        now, cache = self.passes.now, told.get(CACHES[0])
        if cache is None:
            cache = told.get(CACHES[1])
        if (
            now.angles is not told.get("position_embeddings")
            or now.cache() is not cache
            or now.mask is not told.get("attention_mask")
            or now.states is not hidden_states
        ):
            now = self.passes.look(hidden_states, cache, told)
        found = None if args else self._before(hidden_states, now, cache, told)
        if found is None:
            answer: torch.Tensor = self.stock(hidden_states, *args, **told)
            return answer
        h, y = found
        added = self.rest(y)
        if added.dtype is torch.float32 and added.is_contiguous():
            self._add(h.data_ptr(), added.data_ptr(), h.numel())
        else:
            h.add_(added.view_as(h))
        now.states = h
        return h

    def _before(
        self, x: torch.Tensor, now: Pass, cache: Any, told: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """States after attention, [B, T, H], and what goes to the experts, [B * T, H].

        None where that is not for the library, as where what is kept is not of these sequences.
        """
        kept = self._kept(now, cache, told)
        if kept is None:
            return None
        h, y = torch.empty(now.shape), torch.empty(now.tokens, now.shape[2])
        where = now.tokens, x.data_ptr(), now.where, h.data_ptr(), y.data_ptr(), self._pool
        if self._run(ctypes.addressof(kept), *where):
            return h, y
        if not now.is_paged:
            layer = cache.layers[self.index]
            layer.make_room()
            kept = layer.kept
            if kept is not None and self._run(ctypes.addressof(kept), *where):
                return h, y
        return None

    def _kept(self, now: Pass, cache: Any, told: dict[str, Any]) -> Kept | None:
        """Where keys and values are and go; None: not where the library can take them from."""
        if now.turned != self.half.shape.turned:
            return None
        if now.is_paged:
            return paged.find_kept(cache, self.index, now.shape, told, self.half.shape)
        layers = cache.layers
        layer = layers[self.index] if self.index < len(layers) else None
        return layer.kept if type(layer) is GrowingLayer else None


def _is_attention(module: torch.nn.Module) -> bool:
    children = dict(module.named_children())
    linear = {name for name, child in children.items() if isinstance(child, DenseLinear)}
    return linear == {*PROJECTIONS} and children.keys() - linear in (set(), {*NORMS})


def _halves(
    attention: Any, before: torch.nn.Module, after: torch.nn.Module
) -> Iterator[AttentionHalf]:
    """The usual formula with the matrices and norms of an attention module, as far as they fit."""
    projections: list[DenseLinear] = [getattr(attention, name) for name in PROJECTIONS]
    own = [getattr(attention, name, None) for name in NORMS]
    norms = find_norm(before), *(norm and find_norm(norm) for norm in own), find_norm(after)
    dim, scale = getattr(attention, "head_dim", None), getattr(attention, "scaling", None)
    if not (isinstance(dim, int) and isinstance(scale, float) and hasattr(attention, "layer_idx")):
        return
    if [norm is None for norm in norms[1:3]] != [norm is None for norm in own]:
        return
    heads = projections[1].out_features // dim
    group = projections[0].out_features // dim // max(heads, 1)
    biases = [None if p.bias is None else p.bias.numpy() for p in projections]
    for turned in (dim, dim // 2):
        shape = HeadShape(heads, group, dim, turned, scale)
        try:
            yield AttentionHalf(norms, [p.matrix for p in projections], biases, shape)
        except ValueError:
            return


def _answers_alike(step: LayerStep, rest: torch.nn.Module) -> bool:
    """Whether a layer answers so: two sequences, and a token after their prompts, far on."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, PROMPT + 1, step.half.hidden, generator=generator)
    cos, sin = torch.randn(2, 1, PROMPT + 1, step.half.shape.turned, generator=generator)
    places = torch.arange(FIRST, FIRST + PROMPT + 1)[None]
    accepted = inspect.signature(step.stock).parameters
    name = next(filter(accepted.__contains__, CACHES), None)
    answers = []
    for layer in (step.stock, step):
        cache = Cache(layers=[GrowingLayer() for _ in range(step.index + 1)])
        for part in (slice(PROMPT), slice(PROMPT, None)):
            angles = cos[:, part].contiguous(), sin[:, part].contiguous()
            told: dict[str, Any] = {"position_ids": places[:, part], "attention_mask": None}
            told |= {"position_embeddings": angles, name or "": cache}
            try:
                with _probed(rest):
                    y = layer(x[:, part].contiguous(), **told)
            except REFUSALS:
                return False  # it wants something else
        kept: Any = cache.layers[step.index]
        answers.append((y, kept.keys, kept.values))
    return all(itertools.starmap(_is_near, zip(*answers, strict=True)))


@contextmanager
def _probed(module: torch.nn.Module) -> Iterator[None]:
    """While the module answers something simple, in which every number of its input shows."""
    own = vars(module).pop("forward", None)
    module.forward = lambda x: 0.5 * x.roll(1, -1)
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def _is_near(one: Any, other: Any) -> bool:
    """Whether two answers differ by rounding alone."""
    both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    if not both or one.shape != other.shape:
        return False
    size = one.abs().max().item()
    return torch.allclose(one, other, rtol=0, atol=1e-3 * max(size, 1e-6))
