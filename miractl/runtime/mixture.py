"""The mixture itself: each expert on its tokens, then the weighted sum over a token's experts.

Experts are computed one by one, in whatever order their weights arrive. Their outputs are kept
apart in `part` [tokens * k, H] and summed over k at the end, so the result does not depend on what
was cached, staged or late.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

PART_BYTES = 64 * 2**20  # bound of `part`: longer steps are split over tokens


def expert_output(
    module: Any, weights: Mapping[str, torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    """One expert on tokens x [n, H] -> [n, H].

    `module` says how, by the attributes of transformers' experts interface.
    """
    first = "gate_up_proj" if module.has_gate else "up_proj"
    hidden = _linear(x, weights[first], weights.get(f"{first}_bias"), module.is_transposed)
    hidden = module._apply_gate(hidden) if module.has_gate else module.act_fn(hidden)
    out = _linear(hidden, weights["down_proj"], weights.get("down_proj_bias"), module.is_transposed)
    result: torch.Tensor = module.post_expert_norm(out) if module.has_post_expert_norm else out
    return result


def _linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, transposed: bool
) -> torch.Tensor:
    if not transposed:
        return functional.linear(x, weight, bias)
    return x @ weight if bias is None else torch.addmm(bias, x, weight)


def mix(
    module: torch.nn.Module,
    x: torch.Tensor,
    ids: npt.NDArray[np.int64],
    scores: torch.Tensor,
    arrivals: Iterable[tuple[int, Mapping[str, torch.Tensor]]],
) -> torch.Tensor:
    """Sum of scores x expert outputs, [T, H].

    x [T, H]; ids and scores [T, k]; `arrivals` yields (expert, weights) once an expert in ids.
    """
    tokens, k = ids.shape
    part = x.new_empty(tokens * k, x.shape[1])
    pairs_of = _pairs_by_expert(ids)
    for expert, weights in arrivals:
        pairs = pairs_of[expert]
        rows = x if tokens == 1 else x[pairs // k]
        part[pairs] = expert_output(module, weights, rows).to(part.dtype)
    weighted = part * scores.reshape(-1, 1)
    return weighted.view(tokens, k, -1).sum(dim=1).to(x.dtype)


def _pairs_by_expert(ids: npt.NDArray[np.int64]) -> dict[int, torch.Tensor]:
    """Positions in the flattened [T * k] of each expert that occurs, ascending."""
    flat = ids.reshape(-1)
    order = np.argsort(flat, kind="stable")
    experts, starts = np.unique(flat[order], return_index=True)
    groups = np.split(order, starts[1:])
    return {int(e): torch.from_numpy(g) for e, g in zip(experts, groups, strict=True)}
