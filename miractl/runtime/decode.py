"""Stored bytes as numbers: the torch side of `checkpoint.encoding`."""

from collections.abc import Sequence

import torch

from miractl.checkpoint.encoding import StoredTensor
from miractl.native.layout import I4K_HEAD, PANEL, MatrixShape

TORCH_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F64": torch.float64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# E2M1: sign, two bits of exponent, one of mantissa (OCP Microscaling v1.0, table 5).
MXFP4_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
MXFP4_BIAS = 127  # of the group's exponent, E8M0


def decode(stored: StoredTensor, raw: Sequence[torch.Tensor]) -> torch.Tensor:
    """The numbers, `stored.shape`, of raw uint8 bytes in the order of `stored.ranges`.

    Plain tensors keep their type and share memory with `raw`; codes become float32.
    """
    parts = [
        bytes_.view(TORCH_DTYPES[part.dtype]).view(part.shape)
        for bytes_, part in zip(raw, stored.ranges, strict=True)
    ]
    if stored.encoding == "fp8":
        return _fp8(parts[0], parts[1], stored.block)
    if stored.encoding == "mxfp4":
        return _mxfp4(parts[0], parts[1])
    return parts[0]


def _fp8(codes: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Codes [..., R, C], scales [..., ceil(R / b0), ceil(C / b1)] -> [..., R, C]."""
    rows, columns = codes.shape[-2:]
    wide = scales.float().repeat_interleave(block[0], dim=-2)[..., :rows, :]
    return codes.float() * wide.repeat_interleave(block[1], dim=-1)[..., :columns]


def _mxfp4(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Codes [..., R, G, 16], scales [..., R, G] -> [..., R, 32 G]; low nibble first."""
    nibbles = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)  # [..., R, G, 32]
    values = MXFP4_VALUES[nibbles.int()]
    return torch.ldexp(values, scales.int()[..., None] - MXFP4_BIAS).flatten(-2)


def dequantized(block: torch.Tensor, shape: MatrixShape) -> torch.Tensor:
    """The weights float32 [rows, columns] that a block uint8 stands for, on the block's device.

    By docs/formats.md, to the bit as the library has them: products and sums are rounded apart.
    """
    rows, columns, panels = shape.rows, shape.columns, shape.rows // PANEL
    weights = torch.empty(rows, columns, device=block.device)
    codes, rest = block[: shape.code_bytes], block[shape.code_bytes :][: shape.scale_bytes]
    if shape.format.name == "i8":
        stored = codes.view(torch.int8).view(panels, columns // 4, PANEL, 4)
        weights.view(panels, PANEL, columns // 4, 4).copy_(stored.transpose(1, 2))
        scales, offsets = rest.view(torch.float16).view(panels, -1, PANEL).float(), None
    else:
        stored = codes.view(panels, columns // 8, PANEL, 4)
        halves = weights.view(panels, PANEL, columns // 8, 2, 4)
        halves[:, :, :, 0].copy_((stored & 15).transpose(1, 2))
        halves[:, :, :, 1].copy_((stored >> 4).transpose(1, 2))
        by_panel = rest.view(panels, -1)
        head = by_panel[:, :I4K_HEAD].contiguous().view(torch.float32).view(panels, 1, 2, PANEL)
        both = by_panel[:, I4K_HEAD:].reshape(panels, -1, 2, PANEL).float() * head
        scales, offsets = both.unbind(2)
    grouped = weights.view(panels, PANEL, -1, shape.format.group)
    grouped.mul_(scales.transpose(1, 2).unsqueeze(-1))
    if offsets is not None:
        grouped.add_(offsets.transpose(1, 2).unsqueeze(-1))
    return weights
