"""Tensors as they are stored: plain numbers, or codes with scales that belong together.

- `fp8`: w = code x scale of its block (`NAME_scale_inv`, which is multiplied in spite of its name);
  blocks of `weight_block_size`, the last ones may be ragged.
- `mxfp4`: groups of 32 four-bit codes in `NAME_blocks` [..., rows, groups, 16], low nibble first,
  and a power of two a group in `NAME_scales` [..., rows, groups].

Sources: the FP8 checkpoints of DeepSeek-V3 and the OCP Microscaling specification v1.0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from miractl.checkpoint.header import TensorRange
from miractl.errors import MiractlError

PLAIN = ("F32", "BF16", "F16")
MXFP4_GROUP = 32
UNREADABLE = {  # method: what to use instead
    "gptq": "a bf16, fp16 or FP8 checkpoint of the model",
    "awq": "a bf16, fp16 or FP8 checkpoint of the model",
    "bitsandbytes": "the checkpoint it was made from",
    "compressed-tensors": "a bf16, fp16 or FP8 checkpoint of the model",
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of the model and the byte ranges it is made from.

    `shape` is that of the numbers; `ranges` are the numbers, or the codes and their scales.
    """

    encoding: str  # "plain", "fp8" or "mxfp4"
    shape: tuple[int, ...]
    ranges: tuple[TensorRange, ...]
    block: tuple[int, int] = (1, 1)  # of fp8

    @property
    def nbytes(self) -> int:
        """Bytes on disk, scales included."""
        return sum(part.nbytes for part in self.ranges)

    def item(self, index: int) -> "StoredTensor":
        """One item along the first axis, without the bytes of the others."""
        parts = tuple(_item(part, index) for part in self.ranges)
        return StoredTensor(self.encoding, self.shape[1:], parts, self.block)


def _item(tensor: TensorRange, index: int) -> TensorRange:
    one = TensorRange(tensor.file, tensor.start, tensor.dtype, tensor.shape[1:])
    return TensorRange(one.file, one.start + index * one.nbytes, one.dtype, one.shape)


def stored_tensors(
    ranges: Mapping[str, TensorRange], quantization: Mapping[str, Any] | None
) -> dict[str, StoredTensor]:
    """Group codes with their scales, by the config's `quantization_config`.

    Raises MiractlError for codes without scales and for a method that cannot be read.
    """
    method = quantization.get("quant_method") if quantization else None
    if method is None:
        return {name: _plain(tensor) for name, tensor in ranges.items()}
    if method == "fp8":
        return _fp8(ranges, quantization or {})
    if method == "mxfp4":
        return _mxfp4(ranges)
    instead = UNREADABLE.get(str(method), "a checkpoint that is not quantised")
    raise MiractlError(f"experts quantised by {method!r} cannot be read", hint=f"use {instead}")


def _plain(tensor: TensorRange) -> StoredTensor:
    return StoredTensor("plain", tensor.shape, (tensor,))


def _fp8(
    ranges: Mapping[str, TensorRange], quantization: Mapping[str, Any]
) -> dict[str, StoredTensor]:
    block = tuple(quantization.get("weight_block_size") or ())
    if len(block) != 2 or not all(isinstance(n, int) and n > 0 for n in block):
        raise MiractlError(
            f"quantization_config: weight_block_size is {list(block)}, not two sizes"
        )
    found = {}
    for name, tensor in ranges.items():
        if name.endswith("_scale_inv"):
            continue
        if tensor.dtype != "F8_E4M3":
            found[name] = _plain(tensor)
            continue
        scales = _partner(ranges, name, f"{name}_scale_inv")
        wanted = tuple(-(-size // of) for size, of in zip(tensor.shape[-2:], block, strict=True))
        if scales.shape[-2:] != wanted:
            raise MiractlError(
                f"{name}_scale_inv is {list(scales.shape)}, "
                f"blocks of {list(block)} need {list(wanted)}"
            )
        found[name] = StoredTensor("fp8", tensor.shape, (tensor, scales), (block[0], block[1]))
    return found


def _mxfp4(ranges: Mapping[str, TensorRange]) -> dict[str, StoredTensor]:
    found = {}
    for name, tensor in ranges.items():
        if name.endswith("_scales") and f"{name.removesuffix('_scales')}_blocks" in ranges:
            continue
        if not name.endswith("_blocks"):
            found[name] = _plain(tensor)
            continue
        base = name.removesuffix("_blocks")
        scales = _partner(ranges, name, f"{base}_scales")
        if tensor.shape[:-1] != scales.shape or tensor.shape[-1] != MXFP4_GROUP // 2:
            raise MiractlError(
                f"{name} is {list(tensor.shape)}, its scales are {list(scales.shape)}"
            )
        shape = (*tensor.shape[:-2], tensor.shape[-2] * MXFP4_GROUP)
        found[base] = StoredTensor("mxfp4", shape, (tensor, scales))
    return found


def _partner(ranges: Mapping[str, TensorRange], name: str, partner: str) -> TensorRange:
    if partner not in ranges:
        raise MiractlError(f"{name} has no scales: {partner} is missing in the checkpoint")
    return ranges[partner]
