"""Everything but the experts, copied byte by byte into safetensors files of a packed folder.

Their names are not those that transformers looks for: without the records, its own loader would
make up the experts at random.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from miractl.checkpoint.header import TensorRange
from miractl.errors import MiractlError

SHARD_BYTES = 4 << 30
_CHUNK = 1 << 24

Shards = dict[str, dict[str, TensorRange]]  # file name -> tensor name -> where it is now


def plan_shards(tensors: Mapping[str, TensorRange], limit: int = SHARD_BYTES) -> Shards:
    """Files of at most `limit` bytes, or of one tensor that is larger."""
    groups: list[dict[str, TensorRange]] = [{}]
    size = 0
    for name, part in sorted(tensors.items()):
        if groups[-1] and size + part.nbytes > limit:
            groups.append({})
            size = 0
        groups[-1][name] = part
        size += part.nbytes
    count = len(groups)
    return {f"rest-{n:05}-of-{count:05}.safetensors": g for n, g in enumerate(groups, start=1)}


def write_shard(path: Path, tensors: Mapping[str, TensorRange]) -> None:
    """One file, which has its name only once it is whole. Raises MiractlError, OSError."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, part in tensors.items():
        offsets = [end, end + part.nbytes]
        header[name] = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": offsets}
        end += part.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part in tensors.values():
            with part.file.open("rb") as source:
                source.seek(part.start)
                left = part.nbytes
                while left:
                    chunk = source.read(min(_CHUNK, left))
                    if not chunk:
                        raise MiractlError(f"{part.file} ends {left:,} bytes early")
                    file.write(chunk)
                    left -= len(chunk)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
