"""The formula between an expert's matrices is found by asking, whatever the class is called."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from miractl.native.layout import Activation
from miractl.runtime.activation import Formula, find_formula

SILU, TANH, ERF, RELU2 = (
    Activation.SILU,
    Activation.GELU_TANH,
    Activation.GELU_ERF,
    Activation.RELU2,
)


def halves(act: Callable[[torch.Tensor], torch.Tensor], **changes: float) -> Any:
    """A module whose gate and up are the two halves of the rows."""
    limit, shift = changes.get("limit", math.inf), changes.get("shift", 0.0)

    def apply(both: torch.Tensor) -> torch.Tensor:
        gate, up = both.chunk(2, dim=-1)
        return act(gate.clamp(max=limit)) * (up.clamp(-limit, limit) + shift)

    return SimpleNamespace(_apply_gate=apply, act_fn=act)


def alternate(both: torch.Tensor) -> torch.Tensor:
    """As gpt-oss has it."""
    gate, up = both[..., ::2].clamp(max=7.0), both[..., 1::2].clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


def tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (halves(functional.silu), Formula(SILU)),
        (halves(functional.silu, limit=10.0), Formula(SILU, limit=10.0)),
        (halves(functional.silu, shift=0.5), Formula(SILU, shift=0.5)),
        (halves(functional.gelu), Formula(ERF)),
        (halves(tanh_gelu), Formula(TANH)),
        (halves(lambda x: functional.relu(x).square()), Formula(RELU2)),
        (SimpleNamespace(_apply_gate=alternate), Formula(SILU, 1.702, 7.0, 1.0)),
        (SimpleNamespace(act_fn=functional.silu), Formula(SILU)),  # the usual gate
        (halves(torch.tanh), None),
        (halves(functional.relu), None),
        (halves(functional.relu6), None),
        (halves(lambda x: functional.silu(x) + 1e-3), None),
        (SimpleNamespace(_apply_gate=lambda both: both @ torch.ones(7, 7)), None),
    ],
)
def test_gated(module: Any, expected: Formula | None) -> None:
    assert find_formula(module, is_gated=True) == expected


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda x: functional.relu(x).square(), Formula(RELU2)),
        (lambda x: functional.relu(x.clamp(max=9)).square(), Formula(RELU2, limit=9.0)),
        (functional.silu, Formula(SILU)),
        (tanh_gelu, Formula(TANH)),
        (functional.relu, None),
    ],
)
def test_without_a_gate(act: Any, expected: Formula | None) -> None:
    assert find_formula(SimpleNamespace(act_fn=act), is_gated=False) == expected
