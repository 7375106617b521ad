"""The mixture itself: each expert on its tokens, then the weighted sum over a token's experts.

Experts are computed in groups, as their weights arrive. Only the products are made one expert at a
time; what lies between is done once for all rows of a group. Outputs are kept apart, one row for
each (token, k), and summed over k at the end, so the result does not depend on what was cached,
staged or late.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from miractl.native.library import available, library
from miractl.runtime.streams import index

PART_BYTES = 64 * 2**20  # bound of these rows: longer steps are split over tokens

Weights = Mapping[str, torch.Tensor]  # parameter name -> one expert's part
Group = Sequence[tuple[int, Weights | None]]  # (expert, weights) that are there; None: elsewhere
# Outputs [n, H], on the device of x, of pairs (token, k) as positions [n] in [T * k] whose experts,
# given as well, are computed elsewhere.
Elsewhere = Callable[[npt.NDArray[np.int64], Sequence[int]], torch.Tensor]


def mix(
    module: torch.nn.Module,
    x: torch.Tensor,
    ids: npt.NDArray[np.int64],
    scores: torch.Tensor,
    groups: Iterable[Group],
    elsewhere: Elsewhere | None = None,
) -> torch.Tensor:
    """Sum of scores x expert outputs, [T, H].

    x [T, H]; ids and scores [T, k]; every expert in ids is in one of `groups`, and all of a group
    have weights or none has.
    """
    alike = len(ids) == 1 and len(set(ids[0].tolist())) == ids.shape[1]
    arrange = _one_token if alike else _many_tokens
    place, parts = np.empty(ids.size, np.int64), []
    begin = 0
    for pairs, counts, group in arrange(ids, groups):
        weights = [own for _, own in group if own is not None]
        if weights:
            rows = x.expand(len(pairs), -1) if alike else x[index(pairs // ids.shape[1], x.device)]
            parts.append(_outputs(module, rows, counts, weights))
        elif elsewhere is not None:
            parts.append(elsewhere(pairs, [expert for expert, _ in group]))
        place[pairs] = np.arange(begin, begin + len(pairs))
        begin += len(pairs)
    if begin != ids.size:
        raise ValueError(f"Got {begin} of {ids.size} pairs from the groups of experts")
    part = parts[0] if len(parts) == 1 else torch.cat(parts)
    return _combined(part, place, scores).to(x.dtype)


def _combined(
    part: torch.Tensor, place: npt.NDArray[np.int64], scores: torch.Tensor
) -> torch.Tensor:
    """Sum over k of scores [T, k] x the rows of part that `place` [T * k] says, [T, H]."""
    (tokens, k), width = scores.shape, part.shape[1]
    plain = part.dtype is scores.dtype is torch.float32 and part.device.type == "cpu"
    if not (plain and available()):
        weighted = part[index(place, part.device)] * scores.reshape(-1, 1)
        return weighted.view(tokens, k, width).sum(dim=1)
    part, scores, y = part.contiguous(), scores.contiguous(), part.new_empty(tokens, width)
    where = part.data_ptr(), place.ctypes.data, scores.data_ptr()
    library().mira_combine(*where, tokens, k, width, y.data_ptr())
    return y


# Of a group: the pairs (token, k) as positions in [T * k], how many of these each expert has, one
# expert after another, and the group.
_Arranged = Iterator[tuple[npt.NDArray[np.int64], list[int], Group]]


def _one_token(ids: npt.NDArray[np.int64], groups: Iterable[Group]) -> _Arranged:
    """Without sorting: each expert has one pair."""
    place = {expert: at for at, expert in enumerate(ids[0].tolist())}
    for group in groups:
        yield np.array([place[expert] for expert, _ in group]), [1] * len(group), group


def _many_tokens(ids: npt.NDArray[np.int64], groups: Iterable[Group]) -> _Arranged:
    """Pairs sorted by expert, once."""
    flat = ids.reshape(-1)
    order = flat.argsort(kind="stable")
    ordered = flat[order]
    for group in groups:
        experts = np.array([expert for expert, _ in group])
        starts = ordered.searchsorted(experts)
        counts = ordered.searchsorted(experts, side="right") - starts
        spans = zip(starts.tolist(), counts.tolist(), strict=True)
        pairs = np.concatenate([order[start : start + count] for start, count in spans])
        yield pairs, counts.tolist(), group


def _outputs(
    module: Any, x: torch.Tensor, counts: list[int], weights: list[Weights]
) -> torch.Tensor:
    """Each expert on its own rows of x [n, H] -> [n, H].

    `module` says how, by the attributes of transformers' experts interface.
    """
    first = "gate_up_proj" if module.has_gate else "up_proj"
    hidden = _products(x, counts, weights, first, module.is_transposed)
    hidden = module._apply_gate(hidden) if module.has_gate else module.act_fn(hidden)
    out = _products(hidden, counts, weights, "down_proj", module.is_transposed)
    result: torch.Tensor = module.post_expert_norm(out) if module.has_post_expert_norm else out
    return result


def _products(
    x: torch.Tensor, counts: list[int], weights: list[Weights], name: str, transposed: bool
) -> torch.Tensor:
    """Rows of x times their expert's matrix, plus its bias if it has one."""
    bias = f"{name}_bias"
    y = x.new_empty(len(x), weights[0][name].shape[1 if transposed else 0])
    parts = torch.split_with_sizes(x, counts), torch.split_with_sizes(y, counts)
    for given, result, own in zip(*parts, weights, strict=True):
        matrix = own[name] if transposed else own[name].t()
        if bias in own:
            torch.addmm(own[bias], given, matrix, out=result)
        else:
            torch.mm(given, matrix, out=result)
    return y
