"""Whether a checkpoint holds what its config promises: experts, all tensors, a head.

Tensors have more names than one table can hold. What the blueprint knows is looked up; of the rest,
what most layers of a kind have is expected of all of them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from miractl.checkpoint.blueprint import Role
from miractl.checkpoint.encoding import stored_tensors
from miractl.checkpoint.experts import HOLDS, ExpertTensor, below_layer, renamed, resembling
from miractl.checkpoint.faults import Fault
from miractl.checkpoint.geometry import Geometry
from miractl.checkpoint.header import TensorRange
from miractl.checkpoint.shapes import plain_name, wrong_shapes
from miractl.checkpoint.shards import Contents
from miractl.errors import MiractlError

_DOWNLOAD = "download the checkpoint again"
_CHUNK, _SAMPLES = 1 << 16, 16  # bytes and places at which two tensors are compared


def check(
    geometry: Geometry, contents: Contents, experts: Mapping[str, ExpertTensor]
) -> Iterator[Fault]:
    """All faults of the tensors. `experts`: those among them that are experts, by name."""
    names = contents.names
    if not contents.names_known:
        return  # what a broken file holds cannot be missed
    if not experts:
        yield _no_experts(geometry, names)
        return
    yield from _head(geometry, contents)
    yield from _wrong_experts(geometry, experts)
    rest = [name for name in names if name not in experts]
    prefix = next(iter(experts.values())).prefix
    missing = [
        *_missing_outside(geometry, rest),
        *_missing_experts(geometry, experts),
        *_missing_others(geometry, rest, prefix),
    ]
    yield from _missing(missing, _DOWNLOAD)
    yield from wrong_shapes(geometry, contents.tensors, experts)


def check_rest(geometry: Geometry, contents: Contents) -> Iterator[Fault]:
    """All faults of the tensors of a folder whose experts are records."""
    if not contents.names_known:
        return
    yield from _head(geometry, contents)
    missing = [*_missing_outside(geometry, contents.names)]
    if (prefix := rest_prefix(geometry, contents.names)) is not None:
        missing += _missing_others(geometry, contents.names, prefix)
    yield from _missing(missing, "pack the model again")
    yield from wrong_shapes(geometry, contents.tensors, {})


def rest_prefix(geometry: Geometry, names: Iterable[str]) -> str | None:
    """What layers are called where no expert tells it, e.g. model.layers."""
    usual = f"{geometry.blueprint.prefix}.0."
    first = next((name for name in sorted(names) if usual in name), None)
    return first and first[: first.index(usual) + len(usual) - len(".0.")]


def _missing(names: list[str], remedy: str) -> Iterator[Fault]:
    if names:
        more = f", and {len(names) - 1:,} more tensors" if len(names) > 1 else ""
        text = f"{names[0]} is missing{more}"
        yield Fault("missing-tensor", text, remedy, names=tuple(names))


def check_format(quantization: Any, contents: Contents) -> Iterator[Fault]:
    """A format that the runtime does not read, or codes without their scales."""
    try:
        stored_tensors(contents.tensors if contents.is_complete else {}, quantization)
    except MiractlError as error:
        yield Fault("format", error.message, error.hint)


def _no_experts(geometry: Geometry, names: Iterable[str]) -> Fault:
    like = tuple(resembling(names))[:3]
    told = f"; unmatched: {', '.join(like)}" if like else "; no name contains 'expert'"
    text = (
        f"config.json promises {geometry.expert_count:,} experts, no tensor is known as one{told}"
    )
    return Fault("no-experts", text, "use the checkpoint that transformers reads", names=like)


def _head(geometry: Geometry, contents: Contents) -> Iterator[Fault]:
    heads = [name for name in contents.names if name.endswith("lm_head.weight")]
    if heads and is_block(contents.tensors.get(heads[0])):
        return  # a tied head has one too
    if not heads and not geometry.tied:
        text = "lm_head.weight is missing and tie_word_embeddings is false"
        remedy = "download the file that holds it, or set tie_word_embeddings to true if it is tied"
        yield Fault("missing-head", text, remedy, names=("lm_head.weight",))
    if not heads or not geometry.tied:
        return
    text = "lm_head.weight is there although tie_word_embeddings is true; it is not used"
    yield Fault("redundant-head", text, fatal=False, names=tuple(heads))
    head = contents.tensors.get(heads[0])
    embedding = next(
        (t for n, t in contents.tensors.items() if n.endswith("embed_tokens.weight")), None
    )
    if head and embedding and not _same(head, embedding):
        text = (
            "lm_head.weight differs from the token embedding although tie_word_embeddings is true"
        )
        remedy = (
            "set tie_word_embeddings to false in config.json if the model has a head of its own"
        )
        yield Fault("different-head", text, remedy, fatal=False, names=tuple(heads))


def is_block(tensor: TensorRange | None) -> bool:
    """Whether a tensor is the int8 block of a packed folder."""
    return tensor is not None and tensor.dtype == "U8" and len(tensor.shape) == 1


def _same(one: TensorRange, two: TensorRange) -> bool:
    """Whether two tensors are equal where sampled: large ones are not read in full."""
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    step = max(_CHUNK, one.nbytes // _SAMPLES)
    with one.file.open("rb") as first, two.file.open("rb") as second:
        for at in range(0, one.nbytes, step):
            length = min(_CHUNK, one.nbytes - at)
            first.seek(one.start + at)
            second.seek(two.start + at)
            if first.read(length) != second.read(length):
                return False
    return True


def _wrong_experts(geometry: Geometry, experts: Mapping[str, ExpertTensor]) -> Iterator[Fault]:
    held = {tensor.expert for tensor in experts.values() if tensor.expert is not None}
    if held and max(held) >= geometry.experts:
        text = (
            f"the checkpoint holds expert {max(held)}, config.json says {geometry.experts} a layer"
        )
        yield Fault("expert-count", text, "check config.json")


def _missing_experts(geometry: Geometry, experts: Mapping[str, ExpertTensor]) -> Iterator[str]:
    """Names of tensors that other experts or layers have, and projections that none has."""
    samples = {tensor.kind: name for name, tensor in experts.items()}
    seen = {(t.kind, t.layer, t.expert) for t in experts.values()}
    for kind, sample in sorted(samples.items()):
        each: Iterable[int | None] = [None]
        if experts[sample].expert is not None:
            each = range(geometry.experts)
        wanted = [(kind, layer, expert) for layer in geometry.moe_layers for expert in each]
        absent = [place for place in wanted if place not in seen]
        # What is not the matrix itself may be an oddity of few, and is not expected of all.
        if kind[1] == "weight" or 2 * len(absent) < len(wanted):
            for _, layer, expert in absent:
                yield renamed(sample, layer, expert)
    held = {projection for name, _ in samples for projection in HOLDS[name]}
    promised = {p for name in geometry.expert_shapes for p in HOLDS.get(name, ())}
    yield from (f"{projection} of all experts" for projection in sorted(promised - held))


def _missing_outside(geometry: Geometry, names: Iterable[str]) -> Iterator[str]:
    """Tensors beside the layers, where at least one of them has the name that is known."""
    known = {t.name for t in geometry.blueprint.tensors if t.layers is None} - {"lm_head.weight"}
    present = known & {plain_name(name) for name in names}
    if present:
        yield from sorted(known - present)


def _missing_others(geometry: Geometry, names: Iterable[str], prefix: str) -> Iterator[str]:
    found: dict[str, set[int]] = defaultdict(set)  # name below a layer -> layers
    for name in names:
        place = below_layer(name, prefix)
        if place is not None and place[0] < geometry.layers:
            found[place[1]].add(place[0])
    known: dict[str, set[int]] = defaultdict(set)
    for tensor in geometry.blueprint.tensors:
        if tensor.layers is None or tensor.role is Role.EXPERT:
            continue
        # What is not counted may be left out of a checkpoint, but not of some layers.
        if tensor.counted or tensor.name in found:
            known[tensor.name].update(tensor.layers)
    modules = {name.rpartition(".")[0] for name in known}
    strange = {_parent(below) for below in found if below.rpartition(".")[0] not in modules}
    for below in sorted({*found, *known}):
        layers, wanted = found.get(below, set()), known.get(below)
        if wanted is None:
            wanted = _by_kind(geometry, layers)
        elif not layers:
            wanted = wanted & _by_siblings(below, found, strange)
        yield from (f"{prefix}.{layer}.{below}" for layer in sorted(wanted - layers))


def _by_siblings(below: str, found: Mapping[str, set[int]], strange: set[str]) -> set[int]:
    """Layers that have the rest of the module, if all of it is under names that are known."""
    parent = _parent(below)
    if parent in strange:
        return set()
    return set().union(*(layers for other, layers in found.items() if _parent(other) == parent))


def _parent(below: str) -> str:
    return below.rpartition(".")[0].rpartition(".")[0]


def _by_kind(geometry: Geometry, layers: set[int]) -> set[int]:
    """All layers of the kinds of which more than half are among `layers`."""
    kinds = [(mixer, i in geometry.moe_layers) for i, mixer in enumerate(geometry.blueprint.mixers)]
    of_all, of_these = Counter(kinds), Counter(kinds[i] for i in layers)
    usual = {kind for kind, count in of_these.items() if 2 * count > of_all[kind]}
    return {i for i, kind in enumerate(kinds) if kind in usual}
