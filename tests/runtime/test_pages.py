"""Weights in memory that can have huge pages: the same values, tied ones still tied."""

import torch

from miractl.native.memory import HUGE_PAGE
from miractl.runtime.pages import LEAST_BYTES, use_huge_pages


def test_large_weights_move_and_nothing_else_changes() -> None:
    wide = LEAST_BYTES // 4 // 64
    model = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(wide, 64), "head": torch.nn.Linear(64, wide, bias=False)}
        | {"small": torch.nn.Linear(64, 64), "bf16": torch.nn.Linear(64, 2 * wide).bfloat16()}
    )
    model["head"].weight = model["embed"].weight
    before = {name: value.clone() for name, value in model.state_dict().items()}
    small = model["small"].weight.data_ptr()
    use_huge_pages(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model["head"].weight is model["embed"].weight
    assert model["embed"].weight.data_ptr() % HUGE_PAGE == 0
    assert model["bf16"].weight.data_ptr() % 64 == 0
    assert model["bf16"].weight.dtype is torch.bfloat16
    assert model["small"].weight.data_ptr() == small
