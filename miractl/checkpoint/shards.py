"""Which files of a checkpoint folder hold which tensor, and what is wrong with the files."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from miractl.checkpoint.faults import Fault, FileFaultError
from miractl.checkpoint.header import TensorRange, scan_header
from miractl.checkpoint.regular import refuse_special
from miractl.errors import MiractlError

INDEX = "model.safetensors.index.json"
_NUMBERED = re.compile(r"(.*-)(\d+)-of-(\d+)\.safetensors")


@dataclass(frozen=True, slots=True)
class Shard:
    """One file. `tensors` is None where its header cannot be read."""

    name: str
    size: int  # bytes
    tensors: int | None


@dataclass(slots=True)
class Contents:
    """What a checkpoint folder holds. Faulty files leave faults, and out what they do not tell."""

    folder: Path
    index: Mapping[str, str] | None = None  # tensor -> file, as the index says
    shards: list[Shard] = field(default_factory=list)
    tensors: dict[str, TensorRange] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """Names of all tensors that the index or a header tells of."""
        return {*(self.index or ()), *self.tensors}

    @property
    def names_known(self) -> bool:
        """Whether `names` are all, also those of files that cannot be read."""
        return self.index is not None or self.is_complete

    @property
    def is_complete(self) -> bool:
        """Whether there are weights and every header could be read."""
        return bool(self.tensors) and not any(fault.fatal for fault in self.faults)


def tensor_ranges(folder: Path) -> dict[str, TensorRange]:
    """Every tensor of the checkpoint in `folder` with its byte range.

    Each tensor is looked up in the shard that the index names. Raises MiractlError for a missing
    or broken shard, an index that points outside the folder, and a tensor that its shard lacks.
    """
    contents = read_contents(folder)
    for fault in contents.faults:
        if fault.fatal:
            raise fault.error()
    if not contents.tensors:
        raise MiractlError(f"{folder} has no .safetensors files")
    return contents.tensors


def read_contents(folder: Path) -> Contents:
    """Everything that the files of `folder` tell, with all their faults."""
    contents = Contents(folder)
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    contents.index = _read_index(contents)
    wanted = _wanted(contents, files)
    if not files:
        named = f"; the index names {len(wanted)}" if wanted else ""
        text = f"{folder} has no .safetensors files{named}"
        contents.faults.append(Fault("no-weights", text, fatal=False))
        return contents
    _report_missing(contents, [name for name in wanted if name not in files], len(wanted))
    for name in wanted:
        if name in files:
            _read_shard(contents, name)
    if contents.index is not None:
        _report_strangers(contents)
    return contents


def _wanted(contents: Contents, files: list[str]) -> list[str]:
    """Names of the files that make the checkpoint."""
    if contents.index is not None:
        outside = sorted({name for name in contents.index.values() if Path(name).name != name})
        if outside:
            text = f"{INDEX} points outside the folder: {outside[0]!r}"
            fault = Fault("outside-folder", text, "download the index again", names=tuple(outside))
            contents.faults.append(fault)
        return sorted(set(contents.index.values()) - set(outside))
    if len(files) > 1 and not contents.faults:
        text = f"{len(files)} shards and no {INDEX}: their headers are read instead"
        contents.faults.append(Fault("no-index", text, fatal=False))
    return sorted({*files, *(name for file in files for name in _numbered_like(file))})


def _numbered_like(name: str) -> Iterator[str]:
    """All files of the numbered set that `model-00002-of-00003.safetensors` belongs to."""
    if (match := _NUMBERED.fullmatch(name)) and int(match[3]) <= 10_000:
        width = len(match[2])
        for number in range(1, int(match[3]) + 1):
            yield f"{match[1]}{number:0{width}}-of-{match[3]}.safetensors"


def _report_missing(contents: Contents, missing: list[str], wanted: int) -> None:
    if missing:
        text = f"{missing[0]} is missing in {contents.folder}"
        if len(missing) > 1:
            text += f" ({len(missing)} of {wanted} files are)"
        contents.faults.append(
            Fault("missing-shard", text, "download what is missing", names=tuple(missing))
        )


def _read_shard(contents: Contents, name: str) -> None:
    """Add what one file holds: of the tensors, those that the index looks for in it."""
    path = contents.folder / name
    try:
        header = scan_header(path)
    except FileFaultError as fault:
        contents.shards.append(Shard(name, path.stat().st_size, None))
        contents.faults.append(fault.fault(name))
        return
    contents.shards.append(Shard(name, header.size, len(header.tensors)))
    if truncation := header.truncation(path):
        contents.faults.append(truncation.fault(name))
    for tensor, where in header.tensors.items():
        if contents.index is not None:
            if contents.index.get(tensor) == name:
                contents.tensors[tensor] = where
        elif tensor in contents.tensors:
            text = f"{tensor} is in {contents.tensors[tensor].file.name} and in {name}"
            contents.faults.append(Fault("duplicate-tensor", text, names=(tensor,)))
        else:
            contents.tensors[tensor] = where


def _report_strangers(contents: Contents) -> None:
    """Tensors that the index looks for in a readable file which lacks them."""
    readable = {shard.name for shard in contents.shards if shard.tensors is not None}
    lost = tuple(
        tensor
        for tensor, shard in (contents.index or {}).items()
        if shard in readable and tensor not in contents.tensors
    )
    if lost:
        shard = (contents.index or {})[lost[0]]
        more = f" ({len(lost) - 1:,} more like it)" if len(lost) > 1 else ""
        text = f"{INDEX} says that {shard} holds {lost[0]}, but it does not{more}"
        remedy = f"download {shard} and the index again"
        contents.faults.append(Fault("index-mismatch", text, remedy, names=lost))


def _read_index(contents: Contents) -> dict[str, str] | None:
    index = contents.folder / INDEX
    if not index.exists():
        return None
    try:
        refuse_special(index)
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        text = f"{index}: no readable weight_map ({error})"
    else:
        if isinstance(weight_map, dict) and all(isinstance(v, str) for v in weight_map.values()):
            return weight_map
        text = f"{index}: weight_map is not a map from tensor to file name"
    contents.faults.append(Fault("index", text, "download the index again"))
    return None
