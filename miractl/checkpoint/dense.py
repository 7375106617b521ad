"""Which matrices outside the experts may be int8: attention projections and the head, if large.

Routers, shared experts, embeddings and small layers keep their type.
"""

from miractl.native.layout import PANEL, Format, MatrixShape

HEAD = "lm_head.weight"
ATTENTION = frozenset(("self_attn", "attn", "attention", "self_attention", "linear_attn"))
GROUPS = (128, 64, 32)
LEAST = 2**13  # weights


def dense_shape(name: str, shape: tuple[int, ...]) -> MatrixShape | None:
    """The int8 matrix that a tensor becomes; None if it stays as it is."""
    *path, part = name.split(".")
    wanted = name.endswith(HEAD) or not ATTENTION.isdisjoint(path)
    if not wanted or part != "weight" or len(shape) != 2:
        return None
    rows, columns = shape
    group = next((group for group in GROUPS if columns % group == 0), None)
    if group is None or rows % PANEL or rows * columns < LEAST:
        return None
    return MatrixShape(Format("i8", group), rows, columns)
