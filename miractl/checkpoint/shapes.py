"""Whether the tensors of a checkpoint have the shapes that its config makes."""

from collections.abc import Iterator, Mapping

from miractl.checkpoint.blueprint import Role
from miractl.checkpoint.experts import HOLDS, ExpertTensor
from miractl.checkpoint.faults import Fault
from miractl.checkpoint.geometry import Geometry
from miractl.checkpoint.header import TensorRange

Shape = tuple[int, ...]

# Types whose shape is the matrix itself; the others are packed.
_SHAPED = ("F64", "F32", "BF16", "F16", "F8_E4M3", "F8_E5M2")
_STACKED = ("dbrx",)  # families whose fused experts lie one below the other, in two dimensions


def wrong_shapes(
    geometry: Geometry, tensors: Mapping[str, TensorRange], experts: Mapping[str, ExpertTensor]
) -> Iterator[Fault]:
    """One fault for all tensors of another shape. `experts`: those that are experts, by name.

    Layouts differ in the order of axes, which the converters know: only their sizes count here.
    """
    others, projections = _other_shapes(geometry), _projections(geometry)
    wrong = []
    for name, tensor in tensors.items():
        if (expert := experts.get(name)) is not None:
            expected = _expert_shape(geometry, projections, expert)
        else:
            expected = others.get(plain_name(name))
        if expected and tensor.dtype in _SHAPED and sorted(tensor.shape) != sorted(expected):
            wrong.append((name, tensor.shape, expected))
    if wrong:
        name, shape, expected = wrong[0]
        more = f" ({len(wrong) - 1:,} more differ)" if len(wrong) > 1 else ""
        text = f"{name} is {list(shape)}, config.json makes it {list(expected)}{more}"
        remedy = "check that config.json belongs to the weights"
        yield Fault("wrong-shape", text, remedy, names=tuple(name for name, _, _ in wrong))


def plain_name(name: str) -> str:
    """The name without what a larger model puts before its text model."""
    return name.replace("language_model.", "")


def _other_shapes(geometry: Geometry) -> dict[str, Shape]:
    """Shapes by full name of all tensors but the experts."""
    blueprint = geometry.blueprint
    return {
        name: tensor.shape
        for tensor in blueprint.tensors
        if tensor.role is not Role.EXPERT
        for name in tensor.full_names(blueprint.prefix)
    }


def _projections(geometry: Geometry) -> dict[tuple[str, ...], Shape]:
    """Shape of one expert's matrix by what it holds; gate and up may lie in one."""
    shapes = {HOLDS[name]: s for name, s in geometry.expert_shapes.items() if name in HOLDS}
    both = ("gate_proj", "up_proj")
    if both not in shapes and ("gate_proj",) in shapes:
        rows, columns = shapes["gate_proj",]
        shapes[both] = (2 * rows, columns)
    return shapes


def _expert_shape(
    geometry: Geometry, projections: Mapping[tuple[str, ...], Shape], expert: ExpertTensor
) -> Shape | None:
    """The shape that an expert's tensor should have, None for what is no matrix."""
    shape = projections.get(HOLDS[expert.name]) if expert.part == "weight" else None
    if shape is None or expert.expert is not None:
        return shape
    if geometry.family in _STACKED:
        return (geometry.experts * shape[0], shape[1])
    return (geometry.experts, *shape)
