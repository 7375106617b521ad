"""A recorded routing trace: which experts each token chose in each MoE layer, token after token.

The file is an .npz with `topk_ids` [tokens, MoE layers, k] and, where known, `topk_probs` (or
`topk_weights`) of the same shape, `seq_lens` (tokens of each text), and `meta`, a JSON object with
`model`, `experts` and `layer_indices`.
"""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from miractl.errors import UsageError

Ids = npt.NDArray[np.int64]  # [tokens, layers, k]
Floats = npt.NDArray[np.float32]
EXPERT_NAMES = ("experts", "n_experts", "n_routed_experts", "num_experts")
LAYER_NAMES = ("layer_indices", "moe_layer_indices", "layers")


@dataclass(frozen=True, slots=True)
class Trace:
    """Routing of consecutive tokens, ids [tokens, layers, k]; None is what the file does not say.

    `probabilities` have the shape of `ids`; `lengths` are the tokens of each text, in order, and
    sum to the tokens.
    """

    name: str
    ids: Ids
    probabilities: Floats | None = None
    lengths: tuple[int, ...] | None = None
    model: str | None = None
    experts: int | None = None
    layer_indices: tuple[int, ...] | None = None


def read_trace(path: Path) -> Trace:
    """Read and check a trace. Raises UsageError for a file that is none."""
    try:
        with np.load(path) as data:
            arrays = {name: data[name] for name in data.files if name in _ARRAYS}
        ids = arrays["topk_ids"]
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or "no .npz with topk_ids"
        raise UsageError(f"trace {path}: {reason}") from None
    if ids.ndim != 3 or ids.dtype.kind not in "iu" or not ids.size:
        raise UsageError(
            f"trace {path}: topk_ids is {ids.dtype}{list(ids.shape)}, expected whole numbers"
            " [tokens, MoE layers, k]"
        )
    meta = _meta(path, arrays.get("meta"))
    experts = _experts(path, ids, meta)
    indices = next((meta[name] for name in LAYER_NAMES if isinstance(meta.get(name), list)), None)
    if indices is not None and len(indices) != ids.shape[1]:
        raise UsageError(f"trace {path}: {len(indices)} layer indices for {ids.shape[1]} layers")
    return Trace(
        path.name,
        ids.astype(np.int64),
        _probabilities(path, ids, arrays.get("topk_probs", arrays.get("topk_weights"))),
        _lengths(path, len(ids), arrays.get("seq_lens")),
        str(meta["model"]) if meta.get("model") else None,
        experts,
        None if indices is None else tuple(int(index) for index in indices),
    )


_ARRAYS = ("topk_ids", "topk_probs", "topk_weights", "seq_lens", "meta")


def _meta(path: Path, stored: npt.NDArray[Any] | None) -> Mapping[str, Any]:
    if stored is None:
        return {}
    try:
        meta = json.loads(str(stored))
    except ValueError:
        meta = None
    if not isinstance(meta, dict):
        raise UsageError(f"trace {path}: meta is no JSON object")
    return meta


def _experts(path: Path, ids: npt.NDArray[Any], meta: Mapping[str, Any]) -> int | None:
    low, high = int(ids.min()), int(ids.max())
    known = next((meta[name] for name in EXPERT_NAMES if isinstance(meta.get(name), int)), None)
    if low < 0 or (known is not None and high >= known):
        wrong = low if low < 0 else high
        raise UsageError(f"trace {path}: expert {wrong} of {'n/a' if known is None else known}")
    return known


def _probabilities(
    path: Path, ids: npt.NDArray[Any], stored: npt.NDArray[Any] | None
) -> Floats | None:
    if stored is None:
        return None
    if stored.shape != ids.shape or stored.dtype.kind not in "fiu":
        raise UsageError(
            f"trace {path}: topk_probs is {stored.dtype}{list(stored.shape)}, expected numbers"
            f" {list(ids.shape)} as topk_ids"
        )
    values: Floats = stored.astype(np.float32)
    if not np.isfinite(values).all() or float(values.min()) < 0:
        raise UsageError(f"trace {path}: topk_probs are not all finite and from 0")
    return values


def _lengths(path: Path, tokens: int, stored: npt.NDArray[Any] | None) -> tuple[int, ...] | None:
    if stored is None:
        return None
    if stored.ndim != 1 or stored.dtype.kind not in "iu":
        raise UsageError(f"trace {path}: seq_lens is {stored.dtype}{list(stored.shape)}")
    lengths = tuple(int(length) for length in stored)
    if min(lengths, default=0) < 0 or sum(lengths) != tokens:
        raise UsageError(f"trace {path}: seq_lens sum to {sum(lengths)}, topk_ids has {tokens}")
    return lengths
