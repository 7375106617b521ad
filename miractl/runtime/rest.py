"""Everything but the experts, copied byte by byte into safetensors files of a packed folder.

Their names are not those that transformers looks for: without the records, its own loader would
make up the experts at random.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    """Copy tensors into one file. Raises as `write_tensors`."""
    kinds = {name: (part.dtype, part.shape) for name, part in tensors.items()}
    sizes = {name: part.nbytes for name, part in tensors.items()}
    write_tensors(path, kinds, sizes, lambda name: _chunks(tensors[name]))


def write_tensors(
    path: Path,
    kinds: Mapping[str, tuple[str, tuple[int, ...]]],
    sizes: Mapping[str, int],
    chunks: Callable[[str], Iterable[bytes | memoryview]],
) -> None:
    """One safetensors file, which has its name only once it is whole.

    `kinds` are types and shapes, `sizes` bytes, `chunks` gives a tensor's bytes. Raises
    MiractlError, OSError.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in kinds.items():
        offsets = [end, end + sizes[name]]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        end += sizes[name]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in kinds:
            for chunk in chunks(name):
                file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def _chunks(part: TensorRange) -> Iterator[bytes]:
    with part.file.open("rb") as source:
        source.seek(part.start)
        left = part.nbytes
        while left:
            chunk = source.read(min(_CHUNK, left))
            if not chunk:
                raise MiractlError(f"{part.file} ends {left:,} bytes early")
            yield chunk
            left -= len(chunk)
