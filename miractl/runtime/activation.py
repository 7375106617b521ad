"""What an experts class does between its matrices, found by asking it, not by its name.

A few values through the class's own gate tell the parameters of the formula that the kernels have
(docs/formats.md); then the formula has to agree with it everywhere on a grid.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from miractl.native.layout import Activation
from miractl.runtime.hollow import gated

TOLERANCE = 1e-5  # relative; the classes differ among themselves by float32 rounding
HUGE = 1e4  # beyond every limit
DIGITS = 6  # of a parameter: 1.702, 7, 10
_GRID = (-HUGE, *(step / 4 for step in range(-48, 49)), HUGE)


@dataclass(frozen=True, slots=True)
class Formula:
    """act(min(gate, limit)) x (clamp(up, -limit, limit) + shift); without a gate act(min(up))."""

    activation: Activation
    slope: float = 1.0
    limit: float = math.inf
    shift: float = 0.0

    def __call__(self, gate: torch.Tensor, up: torch.Tensor | None) -> torch.Tensor:
        """Values of the formula; `up` is None without a gate."""
        value = _act(self.activation, self.slope, gate.clamp(max=self.limit))
        if up is None:
            return value
        return value * (up.clamp(-self.limit, self.limit) + self.shift)


def find_formula(module: Any, *, is_gated: bool) -> Formula | None:
    """The formula that a stock experts module computes; None if it is not one the kernels have."""
    ask = functools.partial(_ask, module, is_gated)
    try:
        gate, up = (t.reshape(-1) for t in torch.meshgrid(*[_numbers(*_GRID)] * 2, indexing="ij"))
        answer = ask(gate, up)
        candidates = [_fit(kind, ask, is_gated) for kind in Activation]
    except (RuntimeError, TypeError, AttributeError, NotImplementedError):
        return None  # it wants something else than numbers on the CPU
    for formula in candidates:
        if formula is None:
            continue
        found = formula(gate, up if is_gated else None)
        if torch.allclose(answer, found, rtol=TOLERANCE, atol=TOLERANCE):
            return formula
    return None


def _numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _ask(module: Any, is_gated: bool, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The module's own answer for values gate and up [n], float64 [n]."""
    if not is_gated:
        result: torch.Tensor = module.act_fn(gate)
        return result.double()
    both = torch.stack((gate, up), dim=-1)  # [n, 2], the same for halves and for alternate rows
    apply = getattr(module, "_apply_gate", None) or functools.partial(gated, module)
    answer: torch.Tensor = apply(both)
    return answer.double().reshape(-1)


def _fit(kind: Activation, ask: Any, is_gated: bool) -> Formula | None:
    """The parameters that some values imply if this is the activation; None if they cannot be."""

    def one(gate: float, up: float) -> float:
        return float(ask(_numbers(gate), _numbers(up))[0])

    at_one = one(1, 1) - one(1, 0) if is_gated else one(1, 0)
    if not at_one:
        return None
    shift = round(one(1, 0) / at_one, DIGITS) if is_gated else 0.0
    slope = 1.0
    if kind is Activation.SILU:
        if not 0 < at_one < 1:
            return None
        slope = round(-math.log(1 / at_one - 1), DIGITS)
    most = one(1, HUGE) / at_one - shift if is_gated else one(HUGE, 0)
    if not is_gated and kind is Activation.RELU2:
        most = math.sqrt(max(0.0, most))
    unbound = most > 0.99 * HUGE
    limit = math.inf if unbound else round(most, DIGITS)
    return Formula(kind, slope, limit, shift) if limit > 0 else None


def _act(kind: Activation, slope: float, x: torch.Tensor) -> torch.Tensor:
    if kind is Activation.SILU:
        return x * torch.sigmoid(slope * x)
    if kind is Activation.RELU2:
        return functional.relu(x).square()
    return functional.gelu(x, approximate="tanh" if kind is Activation.GELU_TANH else "none")
