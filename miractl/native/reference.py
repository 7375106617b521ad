"""The kernels' arithmetic in numpy: the same decisions and the same bits, slowly.

The oracle of the tests, and a description to read beside docs/formats.md. Needs no compiled
library. Sums run in the order of columns or groups; every operation is rounded to float32.
"""

import numpy as np
from numpy.typing import NDArray

from miractl.native.layout import PANEL, Activation, ExpertShape, Format, MatrixShape

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]

F = np.float32
SMALLEST = F(2.0**-100)  # a group below this is zero
STARTS = (1.10, 1.05, 1.0, 0.95, 0.90, 0.85)
ROUNDS = 4


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """Product and sum, a * b + c, rounded once.

    In float64 the product is exact and the sum is rounded to odd, after which the rounding to
    float32 is the only one that shows.
    """
    with np.errstate(invalid="ignore"):
        product, c64 = a.astype(np.float64) * b, c.astype(np.float64)
        total = product + c64
        carried = total - product
        rest = (product - (total - carried)) + (c64 - carried)
    bits = total.view(np.int64)
    toward = np.where((rest > 0) == (total > 0), 1, -1)
    inexact = (rest != 0) & np.isfinite(rest) & (bits & 1 == 0)
    odd: Doubles = (bits + inexact * toward).view(np.float64)
    return odd.astype(np.float32)


def inverse(x: Floats) -> Floats:
    """1 / x, and 0 where x is too small to divide by."""
    usable = x >= SMALLEST
    return np.where(usable, F(1) / np.where(usable, x, F(1)), F(0))


def _smaller(a: Floats, b: Floats) -> Floats:
    return np.where(a < b, a, b)  # np.minimum may prefer the other zero


def _clipped(x: Floats, low: int, high: int) -> Floats:
    return np.clip(np.rint(np.clip(x, F(low - 1), F(high + 1))), F(low), F(high))


# --- blocks ---------------------------------------------------------------------------------------


def pack_codes(codes: Ints, format_: Format) -> Bytes:
    """codes[rows, columns] in the order of a block."""
    rows, columns = codes.shape
    wide = 4 if format_.name == "i8" else 8
    panels = codes.reshape(rows // PANEL, PANEL, columns // wide, wide // 4, 4)
    panels = panels.transpose(0, 2, 1, 4, 3)  # panel, chunk, row, column of four, half
    if format_.name == "i8":
        return panels.astype(np.int8).view(np.uint8).reshape(-1)
    return (panels[..., 0] | panels[..., 1] << 4).astype(np.uint8).reshape(-1)


def unpack_codes(block: Bytes, shape: MatrixShape) -> Ints:
    """codes[rows, columns] of a block."""
    stored = block[: shape.code_bytes]
    panels, rows, columns = shape.rows // PANEL, shape.rows, shape.columns
    if shape.format.name == "i8":
        chunks = stored.view(np.int8).astype(np.int32).reshape(panels, columns // 4, PANEL, 4)
        return chunks.transpose(0, 2, 1, 3).reshape(rows, columns)
    pairs = stored.astype(np.int32).reshape(panels, columns // 8, PANEL, 4)
    halves = np.stack([pairs & 15, pairs >> 4], axis=2)  # panel, chunk, half, row, column of four
    return halves.transpose(0, 3, 1, 2, 4).reshape(rows, columns)


def unpack_scales(block: Bytes, shape: MatrixShape) -> tuple[Floats, Floats]:
    """Scale and offset of every group, [rows, groups] each; the offsets of I8 are zero."""
    stored = block[shape.code_bytes : shape.code_bytes + shape.scale_bytes]
    panels, groups = shape.rows // PANEL, shape.columns // shape.format.group
    if shape.format.name == "i8":
        halves = stored.view(np.float16).astype(np.float32).reshape(panels, groups, PANEL)
        scale = halves.transpose(0, 2, 1).reshape(shape.rows, groups)
        return scale, np.zeros_like(scale)
    stored = stored.reshape(panels, -1)
    head = np.ascontiguousarray(stored[:, : 8 * PANEL]).view(np.float32)
    head = head.reshape(panels, 1, 2, PANEL)  # D, E
    both = stored[:, 8 * PANEL :].astype(np.float32).reshape(panels, groups, 2, PANEL) * head
    both = both.transpose(2, 0, 3, 1).reshape(2, shape.rows, groups)
    return both[0], both[1]


def quantize(weights: Floats, shape: MatrixShape) -> Bytes:
    """The block of weights[rows, columns]."""
    make = _quantize_i8 if shape.format.name == "i8" else _quantize_i4k
    grouped = weights.reshape(shape.rows, -1, shape.format.group)
    codes, scales = make(grouped)
    block = np.zeros(shape.nbytes, np.uint8)
    block[: shape.code_bytes] = pack_codes(codes.reshape(weights.shape), shape.format)
    block[shape.code_bytes : shape.code_bytes + shape.scale_bytes] = scales
    return block


def dequantize(block: Bytes, shape: MatrixShape) -> Floats:
    """The weights[rows, columns] that a block stands for."""
    scale, offset = (np.repeat(x, shape.format.group, axis=1) for x in unpack_scales(block, shape))
    weights = scale * unpack_codes(block, shape).astype(np.float32)
    return weights if shape.format.name == "i8" else weights + offset


def _quantize_i8(v: Floats) -> tuple[Ints, Bytes]:
    """v[rows, groups, group] to codes of that shape, and the scales as stored."""
    scale = np.minimum(np.abs(v).max(axis=2) / F(127), F(65504)).astype(np.float16)
    codes = _clipped(v * inverse(scale.astype(np.float32))[..., None], -127, 127)
    panels = scale.reshape(-1, PANEL, scale.shape[1]).transpose(0, 2, 1)
    return codes.astype(np.int32), np.ascontiguousarray(panels).view(np.uint8).reshape(-1)


def _quantize_i4k(v: Floats) -> tuple[Ints, Bytes]:
    scale, offset = _fit(v)
    row_scale = np.maximum(scale.max(axis=1), F(0)) / F(255)  # D[rows]
    row_offset = _smaller(offset.min(axis=1), np.zeros(len(v), np.float32)) / F(255)  # E[rows]
    scale8 = _clipped(scale * inverse(row_scale)[:, None], 1, 255)
    offset8 = _clipped(offset * -inverse(-row_offset)[:, None], 0, 255)
    low = offset8 * row_offset[:, None]
    step = inverse(scale8 * row_scale[:, None])
    codes = _clipped((v - low[..., None]) * step[..., None], 0, 15)
    panels = len(v) // PANEL
    head = np.stack([row_scale, row_offset]).reshape(2, panels, PANEL).transpose(1, 0, 2)
    bytes8 = np.stack([scale8, offset8]).astype(np.uint8).reshape(2, panels, PANEL, -1)
    head_bytes = np.ascontiguousarray(head).view(np.uint8).reshape(panels, -1)
    group_bytes = bytes8.transpose(1, 3, 0, 2).reshape(panels, -1)
    return codes.astype(np.int32), np.concatenate([head_bytes, group_bytes], axis=1).reshape(-1)


def _in_order(values: Floats) -> Floats:
    """Sum over the last axis, one after the other."""
    total = np.zeros(values.shape[:-1], np.float32)
    for k in range(values.shape[-1]):
        total = total + values[..., k]
    return total


def _fit(v: Floats) -> tuple[Floats, Floats]:
    """Scale and offset (<= 0) of every group by least squares, from several starts."""
    zero = np.zeros(v.shape[:2], np.float32)
    low, high = _smaller(v.min(axis=2), zero), v.max(axis=2)
    n, total, half = F(v.shape[2]), _in_order(v), (high - low) * F(0.5)
    middle = (low + high) * F(0.5)
    best = np.full(low.shape, F(-1))
    best_scale, best_offset = (high - low) / F(15), low
    for width in STARTS:
        scale = half * (F(width) * (F(2) / F(15)))
        offset = _smaller(middle - half * F(width), zero)
        for _ in range(ROUNDS):
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                q = _clipped((v - offset[..., None]) * inverse(scale)[..., None], 0, 15)
                q_sum, qq_sum, qv_sum = _in_order(q), _in_order(q * q), _in_order(q * v)
                slope = n * qv_sum - q_sum * total
                free_scale = slope / (n * qq_sum - q_sum * q_sum)
                free_offset = (total - free_scale * q_sum) / n
                held = free_offset > 0
                scale = np.where(held, qv_sum / qq_sum, free_scale)
                offset = np.where(held, F(0), free_offset)
                explained = np.where(held, scale * qv_sum, (total * total + slope * free_scale) / n)
                better = (explained > best) & (scale > 0)
            best = np.where(better, explained, best)
            best_scale = np.where(better, scale, best_scale)
            best_offset = np.where(better, offset, best_offset)
    return best_scale, best_offset


# --- products -------------------------------------------------------------------------------------


def quantize_tokens(x: Floats, format_: Format) -> tuple[Ints, Floats, Floats]:
    """Codes[tokens, columns], scale and offset[tokens, groups] of x[tokens, columns]."""
    levels = F(32767) if format_.name == "i8" else F(127)
    v = x.reshape(len(x), -1, format_.group)
    largest = np.abs(v).max(axis=2)
    spoilt = ~np.isfinite(largest)
    usable = ~spoilt & (largest >= SMALLEST)
    safe = np.where(usable, largest, F(1))
    step = np.where(usable, levels / safe, F(0))
    codes = np.rint(np.where(spoilt[..., None], F(0), v) * step[..., None]).astype(np.int32)
    scale = np.where(spoilt, F(np.nan), np.where(usable, safe / levels, F(0)))
    total = codes.sum(axis=2).astype(np.float32) if format_.name == "i4k" else F(0)
    return codes.reshape(x.shape), scale, scale * total


def multiply(x: Floats, block: Bytes, shape: MatrixShape) -> Floats:
    """y[tokens, rows] = x W^T: the normative dot product."""
    group = shape.format.group
    codes, scale = unpack_codes(block, shape), unpack_scales(block, shape)
    tokens = quantize_tokens(x, shape.format)
    y = np.zeros((len(x), shape.rows), np.float32)
    for g in range(shape.columns // group):
        part = slice(g * group, (g + 1) * group)
        # Below 2^53 float64 sums are exact, and numpy multiplies its matrices fast.
        dots = tokens[0][:, part].astype(np.float64) @ codes[:, part].T.astype(np.float64)
        both = scale[0][None, :, g] * tokens[1][:, g, None]
        y = fma(dots.astype(np.float32), both, y)
        if shape.format.name == "i4k":
            y = fma(scale[1][None, :, g], tokens[2][:, g, None], y)
    return y


# --- experts --------------------------------------------------------------------------------------

_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    total = np.full_like(x, F(coefficients[0]))
    for coefficient in coefficients[1:]:
        total = total * x + F(coefficient)
    return total


def exponential(x: Floats) -> Floats:
    """exp(x), x kept within +-87, by the polynomial of Cephes' expf."""
    x = np.clip(x, F(-87), F(87))
    whole = np.rint(x * F(1.44269504))
    rest = x - whole * F(0.693359375) + whole * F(2.12194440e-4)
    p: Floats = _polynomial(_EXP, rest) * rest * rest + rest + F(1)
    exponent = np.where(np.isnan(whole), F(0), whole).astype(np.int32)
    power: Floats = ((exponent + 127) << 23).view(np.float32)
    return p * power


def activate(kind: Activation, x: Floats, slope: float = 1.0) -> Floats:
    """The activation of each value."""
    if kind is Activation.RELU2:
        positive = np.where(x < 0, F(0), x)
        return positive * positive
    if kind is Activation.GELU_ERF:
        z = np.abs(x) * F(0.70710678)
        t = F(1) / (F(1) + F(0.3275911) * z)
        tail = F(0.5) * (_polynomial(_ERF, t) * t) * exponential(-(z * z))
        return x * np.where(x < 0, tail, F(1) - tail)
    if kind is Activation.SILU:
        inner = F(slope) * x
    else:
        inner = F(1.5957691) * (x + F(0.044715) * (x * x * x))
    return x / (F(1) + exponential(-inner))


def expert(x: Floats, block: Bytes, shape: ExpertShape) -> Floats:
    """One expert on x[tokens, hidden]."""
    gate_up, down = shape.gate_up, shape.down
    both = multiply(x, block, gate_up)
    rest = block[gate_up.nbytes :]
    biases = rest[down.nbytes : down.nbytes + 4 * shape.bias_count].view(np.float32)
    if shape.biased:
        both = both + biases[: gate_up.rows]
    limit = F(shape.limit)
    gate = both[:, : shape.inner]
    inner = activate(shape.activation, np.minimum(gate, limit), shape.slope)
    if shape.gated:
        up = np.clip(both[:, shape.inner :], -limit, limit)
        inner = inner * (up + F(shape.shift))
    y = multiply(inner, rest, down)
    return y + biases[gate_up.rows :] if shape.biased else y


def layer(
    x: Floats, ids: Ints, weights: Floats, blocks: list[Bytes | None], shape: ExpertShape
) -> tuple[Floats, Floats]:
    """parts[tokens, top, hidden] of the experts that have a block, and their weighted sum."""
    parts = np.zeros((*ids.shape, shape.hidden), np.float32)
    for number, block in enumerate(blocks):
        tokens, k = np.nonzero(ids == number)
        if block is not None and len(tokens):
            parts[tokens, k] = expert(x[tokens], block, shape)
    y = weights[:, :1] * parts[:, 0]
    for place in range(1, ids.shape[1]):
        y = y + weights[:, place : place + 1] * parts[:, place]
    return parts, y
