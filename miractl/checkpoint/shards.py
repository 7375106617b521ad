"""Which files of a checkpoint folder hold which tensor."""

import json
from pathlib import Path

from miractl.checkpoint.header import TensorRange, read_header
from miractl.errors import MiractlError

INDEX = "model.safetensors.index.json"


def tensor_ranges(folder: Path) -> dict[str, TensorRange]:
    """Every tensor of the checkpoint in `folder` with its byte range.

    Each tensor is looked up in the shard that the index names. Raises MiractlError for a missing
    or broken shard, an index that points outside the folder, and a tensor that its shard lacks.
    """
    index = folder / INDEX
    if not index.exists():
        return _without_index(folder)
    weight_map = _weight_map(index)
    headers = {name: read_header(_shard(folder, name)) for name in sorted(set(weight_map.values()))}
    for tensor, shard in weight_map.items():
        if tensor not in headers[shard]:
            raise MiractlError(f"{index.name} says that {shard} holds {tensor}, but it does not")
    return {tensor: headers[shard][tensor] for tensor, shard in weight_map.items()}


def _without_index(folder: Path) -> dict[str, TensorRange]:
    found: dict[str, TensorRange] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in read_header(path).items():
            if name in found:
                raise MiractlError(f"{name} is in {found[name].file.name} and in {path.name}")
            found[name] = tensor
    if not found:
        raise MiractlError(f"{folder} has no .safetensors files")
    return found


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MiractlError(f"{index}: no readable weight_map ({error})") from None
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise MiractlError(f"{index}: weight_map is not a map from tensor to file name")
    return weight_map


def _shard(folder: Path, name: str) -> Path:
    path = folder / name
    if Path(name).name != name:
        raise MiractlError(f"{INDEX} points outside the folder: {name!r}")
    if not path.exists():
        raise MiractlError(f"{name} is missing in {folder}", hint="download the missing file")
    return path
