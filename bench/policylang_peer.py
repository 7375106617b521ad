"""Run by bench/policylang.py in an environment of moe-policylang's own, without miractl.

    python policylang_peer.py rows.npz result.npz

Of the package only its replay is imported: the package as a whole wants torch, the replay numpy.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

PACKAGES = ("moe_policylang", "moe_policylang.benchmark", "moe_policylang.integrations")


def peer() -> Any:
    """The replay's module, its packages' __init__ left out."""
    spec = find_spec(PACKAGES[0])
    assert spec is not None
    assert spec.submodule_search_locations is not None
    root = Path(next(iter(spec.submodule_search_locations)))
    for name in PACKAGES:
        module = ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    return import_module("moe_policylang.benchmark.replay")


def main() -> None:
    """Replay every layer by itself as its `replay_policies` does, and all layers in one cache."""
    replay = peer()
    given = np.load(sys.argv[1])
    rows, top, slots = given["rows"], int(given["top"]), given["slots"].tolist()
    tokens, layers, experts = rows.shape
    order = np.argpartition(-rows, top - 1)[:, :, :top]  # of one token's experts, as it takes them
    alone = np.zeros((tokens, top, layers, experts), np.float32)
    np.put_along_axis(alone, order.transpose(0, 2, 1)[..., None], 1, axis=3)
    alone = alone.reshape(tokens * top, layers, experts)
    token_ids, layer_ids = np.divmod(np.arange(tokens * layers), layers)
    flat = rows.reshape(-1, experts), layer_ids, np.zeros_like(layer_ids), token_ids
    found: dict[str, list[int]] = {"lru": [], "lfu": [], "belady": [], "belady alone": []}
    found["lru-pool"] = []
    for count in slots:
        functions = replay.policy_topk_lru, replay.policy_topk_lfu, replay.policy_belady
        for name, function in zip(("lru", "lfu", "belady"), functions, strict=True):
            found[name].append(sum(function(rows[:, at], top, count)[0] for at in range(layers)))
        each = [replay.policy_belady(alone[:, at], 1, count)[0] for at in range(layers)]
        found["belady alone"].append(sum(each))
        found["lru-pool"].append(replay.simulate_flat(*flat, top, count * layers)[0])
    np.savez(sys.argv[2], order=order, **{name: np.array(hits) for name, hits in found.items()})


if __name__ == "__main__":
    main()
