"""The mixture itself: each expert on its tokens, then the weighted sum over a token's experts.

Experts are computed in groups, as their weights arrive. Only the products are made one expert at a
time; what lies between is done once for all rows of a group. Outputs are kept apart in `part`
[tokens * k, H] and summed over k at the end, so the result does not depend on what was cached,
staged or late.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

PART_BYTES = 64 * 2**20  # bound of `part`: longer steps are split over tokens

Weights = Mapping[str, torch.Tensor]  # parameter name -> one expert's part
Group = Sequence[tuple[int, Weights]]  # (expert, weights) that are there


def mix(
    module: torch.nn.Module,
    x: torch.Tensor,
    ids: npt.NDArray[np.int64],
    scores: torch.Tensor,
    groups: Iterable[Group],
) -> torch.Tensor:
    """Sum of scores x expert outputs, [T, H].

    x [T, H]; ids and scores [T, k]; every expert in ids is in one of `groups`.
    """
    tokens, k = ids.shape
    arrange = _one_token if tokens == 1 else _many_tokens
    part = x.new_empty(tokens * k, x.shape[1])
    for pairs, rows, counts, weights in arrange(x, ids, groups):
        out = _outputs(module, rows, counts, weights)
        if len(weights) == k and tokens == 1:
            part = out
        else:
            part[pairs] = out
    weighted = part * scores.reshape(-1, 1)
    return weighted.view(tokens, k, -1).sum(dim=1).to(x.dtype)


# Of a group: the pairs (token, k) as positions in [T * k], the rows of x that they want, how many
# of these each expert has, one expert after another, and the experts' weights.
_Arranged = Iterator[tuple[torch.Tensor, torch.Tensor, list[int], list[Weights]]]


def _one_token(x: torch.Tensor, ids: npt.NDArray[np.int64], groups: Iterable[Group]) -> _Arranged:
    """Without sorting: each expert has one row, and it is the same."""
    place = {expert: at for at, expert in enumerate(ids[0].tolist())}
    for group in groups:
        ordered = sorted(group, key=lambda pair: place[pair[0]])
        pairs = torch.tensor([place[expert] for expert, _ in ordered])
        rows = x.expand(len(ordered), -1)
        yield pairs, rows, [1] * len(ordered), [weights for _, weights in ordered]


def _many_tokens(x: torch.Tensor, ids: npt.NDArray[np.int64], groups: Iterable[Group]) -> _Arranged:
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
        rows = x[torch.from_numpy(pairs // ids.shape[1])]
        yield torch.from_numpy(pairs), rows, counts.tolist(), [weights for _, weights in group]


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
