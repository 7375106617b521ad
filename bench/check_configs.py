"""Compare the geometry of many published configs with exact counts made elsewhere.

    python bench/check_configs.py

Reads `configs/` of the data folder, ../shared/data or MIRACTL_DATA: one folder a model, and
size_table.json with counts. Prints a line a model: its numbers, and whether they agree, or the
reason why it is refused. Exit code 1 for a number that differs or a model without either.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from miractl.checkpoint.config import ModelConfig
from miractl.checkpoint.geometry import Geometry, geometry_of
from miractl.errors import MiractlError
from miractl.output import table

DATA = Path(os.environ.get("MIRACTL_DATA", Path(__file__).parent.parent.parent / "shared/data"))
HEADERS = ("model", "moe layers", "experts", "top-k", "parameters", "active", "expert bytes", "")
# Folders that the table calls by another name.
NAMES = {"real lrc-jetmoesft": "real lrc-jetmoe", "real qwen3-30b-a3b-2507": "real lrc-qwen3"}
NAMES |= {
    "real mixtral-8x7b-v0.1": "real lrc-mixtral",
    "real lrc-olmoeins": "real lrc-olmoe",
    "derived qwen3_235b_a22b_config.json": "override qwen3",
    "derived kimi_k2_config.json": "override deepseek_v3",
}


def numbers(geometry: Geometry) -> dict[str, Any]:
    """A geometry in the words of size_table.json."""
    return {
        "model_type": geometry.family,
        "layers": geometry.layers,
        "moe_layers": len(geometry.moe_layers),
        "first_moe_layer": geometry.moe_layers[0],
        "experts": geometry.experts,
        "top_k": geometry.top_k,
        "total_params": geometry.parameters,
        "expert_params": geometry.expert_parameters,
        "params_per_expert": geometry.parameters_per_expert,
        "bytes_per_expert_bf16": geometry.expert_bytes_as("BF16"),
        "shared_expert_params": geometry.shared_parameters,
        "non_expert_params": geometry.non_expert_parameters,
        "embed_lmhead_params": geometry.embedding_parameters,
    }


def check(path: Path, expected: list[dict[str, Any]]) -> tuple[tuple[object, ...], bool]:
    """One row of the table and whether it is right."""
    name = name_of(path)
    try:
        geometry = geometry_of(ModelConfig(path, json.loads(path.read_text(encoding="utf-8"))))
    except MiractlError as error:
        reason = error.message.removeprefix(f"{path}: ")
        return (name, None, None, None, None, None, None, f"refused: {reason}"), True
    found = numbers(geometry)
    rows = [row for row in expected if row["source"].split(" (")[0] == source_of(name)]
    wrong = [
        f"{key} {found[key]} is not {value}"
        for row in rows[:1]
        for key, value in row.items()
        if value is not None and key in found and found[key] != value
    ]
    verdict = (
        f"differs: {'; '.join(wrong)}" if wrong else "agrees" if rows else "no count to compare"
    )
    row = (
        name,
        f"{len(geometry.moe_layers)}/{geometry.layers}",
        *(geometry.experts, geometry.top_k, geometry.parameters, geometry.active_parameters),
        geometry.bytes_per_expert,
        verdict,
    )
    return row, not wrong


def name_of(path: Path) -> str:
    """`real` or `derived` and the folder, or the file where it stands alone."""
    alone = path.name != "config.json"
    folder, own = (path.parent, path.name) if alone else (path.parent.parent, path.parent.name)
    return f"{folder.name} {own}"


def source_of(name: str) -> str:
    """What size_table.json calls a config."""
    return NAMES.get(name, name.replace("derived", "default"))


def main() -> int:
    """Print the table; returns the exit code."""
    configs = DATA / "configs"
    if not (configs / "size_table.json").is_file():
        print(f"nothing to compare: no {configs}/size_table.json (MIRACTL_DATA names the folder)")
        return 0
    expected = json.loads((configs / "size_table.json").read_text(encoding="utf-8"))
    paths = [*sorted(configs.glob("*/*/config.json")), *sorted(configs.glob("derived/*.json"))]
    results = [check(path, expected) for path in paths]
    print(table([row for row, _ in results], HEADERS))
    agreed = sum(row[-1] == "agrees" for row, _ in results)
    refused = sum(str(row[-1]).startswith("refused") for row, _ in results)
    print(f"\n{len(results)} configs: {agreed} agree with a count, {refused} refused")
    have = {source_of(name_of(path)) for path in paths}
    lost = [row["model"] for row in expected if row["source"].split(" (")[0] not in have]
    print(f"{len(expected) - len(lost)} of {len(expected)} counts compared")
    if lost:
        print(f"no config here for: {', '.join(lost)}")
    return 0 if all(right for _, right in results) else 1


if __name__ == "__main__":
    sys.exit(main())
