"""Names inside the brain: of an expert, and of nobody's tokens."""

from typing import NamedTuple

NOBODY = -1  # the sequence of rows that are nobody's, such as padding


class ExpertKey(NamedTuple):
    """An expert of one MoE layer.

    `layer` counts the MoE layers from 0; the model's real layer index appears only at the border.
    """

    layer: int
    expert: int
