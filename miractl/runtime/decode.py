"""Stored bytes as numbers: the torch side of `checkpoint.encoding`."""

from collections.abc import Sequence

import torch

from miractl.checkpoint.encoding import StoredTensor

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
