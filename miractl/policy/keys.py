"""The name of one expert inside the brain."""

from typing import NamedTuple


class ExpertKey(NamedTuple):
    """An expert of one MoE layer.

    `layer` counts the MoE layers from 0; the model's real layer index appears only at the border.
    """

    layer: int
    expert: int
