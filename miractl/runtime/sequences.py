"""Whose tokens a step has, told from the positions that the model computes with.

A hook on the model sees every forward pass before its layers do. What a wrong guess costs is
prediction: nothing that is computed depends on it.

Position 0 begins a sequence; another position continues the live sequence whose last one was one
less, the one seen last, for nobody says when a text has ended; of several the first in order. Who
continues nobody begins a sequence too. Sequences that took no part in the last `PATIENCE` steps are
forgotten.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from miractl.policy.keys import NOBODY
from miractl.policy.routing import Segment

Positions = npt.NDArray[np.int64]
Run = tuple[int | None, int]  # position of the first token, None for padding; and how many
PATIENCE = 64  # steps
MOST = 1024  # live sequences
CACHES = "cache", "past_key_values"  # what models call their keys and values
NOBODYS_TOKEN = Segment(NOBODY, 0, 1, 0)


class Sequences:
    """The sequences of one model. Not thread-safe: one forward pass at a time."""

    def __init__(self) -> None:
        self.step = -1
        self._names = itertools.count()
        self._live: dict[int, tuple[int, int]] = {}  # name: last position, step seen last
        self._segments: tuple[Segment, ...] = ()
        self.alone: tuple[Segment, ...] = (NOBODYS_TOKEN,)  # segments of a pass of one token

    def watch(self, model: torch.nn.Module) -> None:
        """Let the model tell of its passes."""
        model.register_forward_pre_hook(self._before, with_kwargs=True)

    def segments(self, rows: int) -> tuple[Segment, ...]:
        """The segments of the pass under way; nobody's if it has not told of so many rows."""
        if self._segments and self._segments[-1].stop == rows:
            return self._segments
        return (NOBODYS_TOKEN,) if rows == 1 else (Segment(NOBODY, 0, rows, 0),)

    @property
    def current(self) -> tuple[Segment, ...]:
        """The segments of the pass under way; empty where nobody knows."""
        return self._segments

    def begin(self, runs: Iterable[Run] | None) -> None:
        """A step of these runs of tokens, in order; None: nobody knows."""
        self.step += 1
        self._live = {
            name: seen for name, seen in self._live.items() if self.step - seen[1] <= PATIENCE
        }
        segments, at = [], 0
        for position, length in runs or ():
            name = NOBODY if position is None else self._continue(position, length)
            segments.append(Segment(name, at, at + length, position or 0))
            at += length
        self._segments = tuple(segments)
        self.alone = self.segments(1)
        while len(self._live) > MOST:
            del self._live[next(iter(self._live))]

    def _continue(self, position: int, length: int) -> int:
        """The sequence that these tokens belong to."""
        live = self._live.items()
        seen = {n: step for n, (last, step) in live if last == position - 1 and step < self.step}
        name = next(self._names) if position == 0 or not seen else max(seen, key=seen.__getitem__)
        # The last to be seen stands last: those of a batch keep their order.
        self._live.pop(name, None)
        self._live[name] = position + length - 1, self.step
        return name

    def _before(self, model: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        try:
            self.begin(_runs(kwargs, args[0] if args else None))
        except (TypeError, ValueError, AttributeError, IndexError, RuntimeError):
            self.begin(None)  # a model that is told of its tokens in a way not seen before


def _runs(told: Mapping[str, Any], first: Any) -> list[Run]:
    """What a model is told of a pass, as runs of consecutive positions."""
    tokens = told.get("input_ids", first)
    tokens = told["inputs_embeds"] if tokens is None else tokens
    rows, width = tokens.shape[:2]
    borders = told.get("cu_seq_lens_q")
    if borders is not None:
        positions = told["position_ids"].reshape(-1).tolist()
        spans = itertools.pairwise(borders.tolist())
        return [(positions[start], stop - start) for start, stop in spans if stop > start]
    mask = told.get("attention_mask")
    if rows == width == 1 and mask is None and told.get("position_ids") is None:
        return [(_past(told), 1)]
    positions = _positions(told, rows, width)
    real = np.ones((rows, width), bool)
    if isinstance(mask, torch.Tensor) and mask.dim() == 2:
        real = mask[:, -width:].bool().cpu().numpy()
    return [run for row in range(rows) for run in _split(positions[row], real[row])]


def _positions(told: Mapping[str, Any], rows: int, width: int) -> Positions:
    """Of every token, [rows, width]."""
    given = told.get("position_ids")
    if given is None:
        past = _past(told)
        return np.tile(np.arange(past, past + width), (rows, 1))
    flat = given[0] if given.dim() == 3 else given  # of several kinds the first is the text's
    positions: Positions = np.broadcast_to(flat.cpu().numpy(), (rows, width))
    return positions


def _past(told: Mapping[str, Any]) -> int:
    """Tokens that were there before a pass."""
    cache = next((told[name] for name in CACHES if told.get(name) is not None), None)
    return 0 if cache is None else int(cache.get_seq_length())


def _split(positions: Positions, real: npt.NDArray[np.bool_]) -> Iterator[Run]:
    """One row, where padding begins or ends and where positions jump."""
    if len(positions) == 1:
        yield (int(positions[0]) if real[0] else None), 1
        return
    jumps = (np.diff(positions) != 1) & (real[1:] | real[:-1]) | (real[1:] != real[:-1])
    edges = [0, *(np.flatnonzero(jumps) + 1).tolist(), len(positions)]
    for start, stop in itertools.pairwise(edges):
        yield (int(positions[start]) if real[start] else None), stop - start
