"""Everything that the files of a checkpoint folder tell: no weight loaded, no fault hidden."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miractl.checkpoint import completeness
from miractl.checkpoint.config import ModelConfig, UnknownFamilyError
from miractl.checkpoint.experts import ExpertTensor, below_layer, find_experts, is_draft
from miractl.checkpoint.faults import Fault, FileFaultError
from miractl.checkpoint.geometry import Geometry, geometry_of
from miractl.checkpoint.packed import (
    MANIFEST,
    Manifest,
    describe,
    is_packed,
    missing_bytes,
    read_manifest,
)
from miractl.checkpoint.shards import Contents, Shard, read_contents
from miractl.errors import MiractlError


@dataclass(frozen=True, slots=True)
class Stored:
    """Tensors of one type in the experts or in the rest of the model."""

    part: str  # "experts" or "rest"
    dtype: str
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a folder is. `geometry` is None where config.json does not describe a model."""

    folder: Path
    geometry: Geometry | None
    layout: str | None  # "one tensor an expert", "experts fused in one tensor", None without names
    shards: tuple[Shard, ...]
    stored: tuple[Stored, ...]
    faults: tuple[Fault, ...]
    packed: Manifest | None = None  # of a folder whose experts are records

    @property
    def usable(self) -> bool:
        """Whether no fault is in the way."""
        return not any(fault.fatal for fault in self.faults)

    def refuse(self) -> None:
        """Raise the first fault that makes the checkpoint unusable.

        A family that cannot be sized here is no such fault: transformers may still know it.
        """
        for fault in self.faults:
            if fault.fatal and fault.code != "family":
                raise fault.error()


def inspect_folder(folder: Path) -> Inspection:
    """Read config.json, the index and all headers of a folder; whatever is wrong is a fault."""
    contents = read_contents(folder)
    names = contents.names
    has_head = None
    if contents.names_known:
        has_head = any(name.endswith("lm_head.weight") for name in names)
    try:
        config = ModelConfig.read(folder)
        geometry = geometry_of(config, has_head)
    except MiractlError as error:
        code = "family" if isinstance(error, UnknownFamilyError) else "config"
        fault = Fault(code, error.message, error.hint)
        stored = _stored(contents, {})
        shards = tuple(contents.shards)
        return Inspection(folder, None, None, shards, stored, (fault, *contents.faults))
    if is_packed(folder):
        return _inspect_packed(folder, geometry, contents, config.value("quantization"))
    experts = find_experts(names, geometry.moe_layers)
    faults = [
        *contents.faults,
        *completeness.check(geometry, contents, experts),
        *completeness.check_format(config.value("quantization"), contents),
    ]
    if contents.is_complete and not any(fault.code == "no-experts" for fault in faults):
        geometry = _measured(geometry, contents, experts)
    return Inspection(
        folder,
        geometry,
        _layout(experts),
        tuple(contents.shards),
        _stored(contents, experts),
        tuple(sorted(faults, key=lambda fault: not fault.fatal)),
    )


def _inspect_packed(
    folder: Path, geometry: Geometry, contents: Contents, quantization: Any
) -> Inspection:
    """A folder whose experts are records: the manifest tells of them, the headers of the rest."""
    faults = [fault for fault in contents.faults if fault.code != "no-index"]
    faults += completeness.check_rest(geometry, contents)
    faults += completeness.check_format(quantization, contents)
    manifest = None
    try:
        manifest = read_manifest(folder)
    except FileFaultError as error:
        faults.append(error.fault(MANIFEST))
    if manifest is not None:
        faults += missing_bytes(manifest)
        if (manifest.layers, manifest.experts) != (geometry.moe_layers, geometry.experts):
            text = (
                f"the records are {manifest.experts} experts in {len(manifest.layers)} layers, "
                f"config.json says {geometry.experts} in {len(geometry.moe_layers)}"
            )
            faults.append(Fault("expert-count", text, "pack the model again"))
        prefix = completeness.rest_prefix(geometry, contents.names) or geometry.blueprint.prefix
        geometry = dataclasses.replace(
            geometry,
            bytes_per_expert=manifest.record.nbytes,
            non_expert_bytes=_used_bytes(geometry, contents, {}, prefix),
            sizes_from="headers",
            record=manifest.record,
            dense=bool(manifest.dense),
        )
        if manifest.record.quantized is not None:
            stored = dataclasses.replace(geometry.format, name=manifest.kind)
            geometry = dataclasses.replace(geometry, format=stored)
    return Inspection(
        folder,
        geometry,
        None if manifest is None else describe(manifest),
        tuple(contents.shards),
        _stored(contents, {}),
        tuple(sorted(faults, key=lambda fault: not fault.fatal)),
        manifest,
    )


def _measured(
    geometry: Geometry, contents: Contents, experts: Mapping[str, ExpertTensor]
) -> Geometry:
    """The geometry with the bytes that the headers say; what is never loaded is left out."""
    held = sum(contents.tensors[name].nbytes for name in experts if name in contents.tensors)
    prefix = next(iter(experts.values())).prefix
    rest = _used_bytes(geometry, contents, experts, prefix)
    each, odd = divmod(held, geometry.expert_count)
    return dataclasses.replace(
        geometry,
        bytes_per_expert=None if odd else each,
        non_expert_bytes=rest,
        sizes_from="headers",
    )


def _used_bytes(
    geometry: Geometry, contents: Contents, experts: Mapping[str, ExpertTensor], prefix: str
) -> int:
    """Bytes of all tensors that are loaded, without the experts."""
    return sum(
        tensor.nbytes
        for name, tensor in contents.tensors.items()
        if name not in experts
        and (completeness.is_block(tensor) or not _is_unused(geometry, name, prefix))
    )


def _is_unused(geometry: Geometry, name: str, prefix: str) -> bool:
    """A second copy of a tied head, a draft head, a layer after the last."""
    if is_draft(name) or (geometry.tied and name.endswith("lm_head.weight")):
        return True
    place = below_layer(name, prefix)
    return place is not None and place[0] >= geometry.layers


def _layout(experts: Mapping[str, ExpertTensor]) -> str | None:
    fused = {tensor.expert is None for tensor in experts.values()}
    if len(fused) != 1:
        return None
    return "experts fused in one tensor" if fused.pop() else "one tensor an expert"


def _stored(contents: Contents, experts: Mapping[str, ExpertTensor]) -> tuple[Stored, ...]:
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for name, tensor in contents.tensors.items():
        sums["experts" if name in experts else "rest", tensor.dtype][0] += 1
        sums["experts" if name in experts else "rest", tensor.dtype][1] += tensor.nbytes
    return tuple(Stored(*key, *each) for key, each in sorted(sums.items()))
