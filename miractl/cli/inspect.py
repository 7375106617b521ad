"""`miractl inspect`: what a checkpoint is, and what is wrong with it."""

import dataclasses
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from miractl.cli.options import json_option
from miractl.errors import UsageError
from miractl.output import Output, table
from miractl.units import format_bytes

if TYPE_CHECKING:
    from miractl.checkpoint.geometry import Geometry
    from miractl.checkpoint.inspection import Inspection

SCHEMA = "miractl.inspect/1"
_LABEL = 19  # columns of the longest label and a gap


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--verify-hashes", is_flag=True, help="Read a packed folder and check every byte.")
@json_option
def command(model: Path, verify_hashes: bool, as_json: bool) -> None:
    """Say what the checkpoint in the folder MODEL is, and what is missing or damaged.

    Reads config.json, the index and the headers of the shards, not the weights; a folder with
    config.json alone will do. A packed folder is known by its manifest. Exit codes: 0 usable,
    1 a fault is in the way.

    \b
    Examples:
      miractl inspect ./Qwen3-30B-A3B
      miractl inspect ./my-model --json
      miractl inspect ./packed --verify-hashes
    """
    from miractl.checkpoint.gguf import refuse_gguf
    from miractl.checkpoint.inspection import inspect_folder

    refuse_gguf(model)
    if not model.is_dir():
        raise UsageError(f"no model folder {str(model)!r}", hint="miractl inspect ./my-model")
    found = inspect_folder(model)
    if verify_hashes:
        found = _with_hashes(found)
    out = Output(json=as_json)
    if as_json:
        out.json(_facts(found, verify_hashes))
    else:
        _print(found, out)
        if verify_hashes and found.usable:
            out.data(f"{out.style(out.mark('ok'), 'green')} every byte is what was packed")
    click.get_current_context().exit(0 if found.usable else 1)


def _with_hashes(found: "Inspection") -> "Inspection":
    """The same, with a fault for every file and record that is not what was packed."""
    from miractl.checkpoint.packed import wrong_hashes

    if found.packed is None:
        raise UsageError(
            f"{found.folder} is not packed: there are no hashes to check",
            hint=f"miractl inspect {found.folder}",
        )
    if not found.usable:
        return found
    return dataclasses.replace(found, faults=(*wrong_hashes(found.packed), *found.faults))


def _print(found: "Inspection", out: Output) -> None:
    if found.geometry is not None:
        out.data(_sheet(found))
    if found.stored:
        rows = [(s.part, s.dtype, s.tensors, format_bytes(s.bytes)) for s in found.stored]
        out.data("\n" + table(rows, ("part", "type", "tensors", "size")))
    if found.shards:
        files = [(s.name, s.tensors, format_bytes(s.size)) for s in found.shards]
        out.data("\n" + table(files, ("file", "tensors", "size")))
    if found.geometry is not None or found.shards:
        out.data("")
    for fault in found.faults:
        if found.geometry is None and not fault.fatal:
            continue  # the reason why it is no model says all
        mark = out.mark("fail" if fault.fatal else "warn")
        styled = out.style(mark, "red" if fault.fatal else "yellow")
        out.data(f"{styled} {fault.text}")
        if fault.remedy:
            out.data(f"{' ' * len(mark)} {out.style(fault.remedy, 'dim')}")
    if found.usable:
        out.data(f"{out.style(out.mark('ok'), 'green')} no fault is in the way")


def _sheet(found: "Inspection") -> str:
    g, packed = found.geometry, found.packed
    assert g is not None
    per_token = g.kv_elements_per_token * 2
    rows = (
        ("family", f"{g.family}{f', {g.architecture}' if g.architecture else ''}"),
        ("layers", f"{g.layers}, with experts: {_layers(g.moe_layers, g.layers)}"),
        ("experts", f"{g.experts} a layer, {g.expert_count:,} in all; a token uses {g.top_k}"),
        ("shared experts", f"{g.shared_experts} a layer" if g.shared_experts else "none"),
        ("expert", ", ".join(f"{name} {_shape(s)}" for name, s in g.expert_shapes.items())),
        ("layout", found.layout),
        ("packed from", packed.source["name"] if packed else ""),
        ("format", _format(g)),
        ("parameters", f"{g.parameters:,}, a token uses {g.active_parameters:,}"),
        ("in an expert", f"{g.parameters_per_expert:,}"),
        ("bytes an expert", _bytes(g.bytes_per_expert)),
        ("experts in all", _bytes(g.expert_bytes)),
        ("rest of the model", _bytes(g.non_expert_bytes)),
        ("sizes from", {"config": "config.json"}.get(g.sizes_from, "the headers of the shards")),
        ("KV cache", f"{format_bytes(per_token)} a token at 2 bytes an element{_windows(g)}"),
        ("context", None if g.context is None else f"{g.context:,} tokens"),
        ("vocabulary", f"{g.vocabulary:,}, {'tied head' if g.tied else 'head of its own'}"),
        ("part", "the text model; what else there is, is not counted" if g.is_part else ""),
    )
    lines = [
        f"{label:<{_LABEL}}{'n/a' if text is None else text}" for label, text in rows if text != ""
    ]
    return "\n".join((found.folder.resolve().name, "", *lines))


def _layers(indices: tuple[int, ...], count: int) -> str:
    """`all`, `1 to 26`, `every 2nd from 1 to 31`, or the list."""
    if len(indices) == count:
        return "all"
    steps = {after - before for before, after in pairwise(indices)}
    first, last = indices[0], indices[-1]
    if steps == {1}:
        return f"{first} to {last}"
    if len(steps) == 1 and len(indices) > 2:
        step = steps.pop()
        return f"every {step}{ {2: 'nd', 3: 'rd'}.get(step, 'th') } from {first} to {last}"
    return ", ".join(map(str, indices))


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _format(geometry: "Geometry") -> str | None:
    stored = geometry.format
    dense = "attention and head int8 blocks, " if geometry.dense else ""
    if not dense and (stored.name is None or stored.name == stored.dtype):
        return stored.name
    return f"experts {stored.name or 'n/a'}, {dense}the rest {stored.dtype or 'n/a'}"


def _bytes(size: int | None) -> str | None:
    return None if size is None else f"{format_bytes(size)} ({size:,} bytes)"


def _windows(geometry: "Geometry") -> str:
    windowed = [group for group in geometry.kv if group.window]
    if not windowed:
        return ""
    layers, widest = sum(g.layers for g in windowed), max(g.window or 0 for g in windowed)
    return f"; {layers} layers keep the last {widest:,} alone"


def _facts(found: "Inspection", hashed: bool) -> dict[str, Any]:
    packed = None if found.packed is None else {**found.packed.to_json(), "hashed": hashed}
    return {
        "schema": SCHEMA,
        "model": str(found.folder),
        "usable": found.usable,
        "geometry": None if found.geometry is None else found.geometry.to_json(),
        "layout": found.layout,
        "packed": packed,
        "stored": [
            {"part": s.part, "dtype": s.dtype, "tensors": s.tensors, "bytes": s.bytes}
            for s in found.stored
        ],
        "shards": [{"name": s.name, "bytes": s.size, "tensors": s.tensors} for s in found.shards],
        "faults": [fault.to_json() for fault in found.faults],
    }
