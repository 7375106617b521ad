"""How weights are stored, and how many bytes a tensor of a given shape takes that way."""

import fnmatch
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from miractl.checkpoint.config import ModelConfig
from miractl.checkpoint.encoding import MXFP4_GROUP

# Types that config.json may name, and bytes an element.
DTYPES = {
    "bfloat16": ("BF16", 2),
    "float16": ("F16", 2),
    "half": ("F16", 2),
    "float32": ("F32", 4),
    "float": ("F32", 4),
}
ELEMENT_BYTES = dict(DTYPES.values())


@dataclass(frozen=True, slots=True)
class Format:
    """How a checkpoint stores its weights. `dtype`: what is not quantised, None if unknown."""

    name: str | None  # of the experts: a dtype or a quantisation method
    dtype: str | None
    bits: int = 0
    group: int = 0  # rows of a GPTQ or AWQ matrix that share a scale; -1 for all
    block: tuple[int, int] | None = None  # FP8: rows and columns that share a scale
    plain: tuple[str, ...] = ()  # patterns of modules that are not quantised

    def plain_bytes(self, size: int) -> int | None:
        """Bytes of `size` elements that are not quantised."""
        return None if self.dtype is None else size * ELEMENT_BYTES[self.dtype]

    def expert_bytes(self, shape: tuple[int, ...]) -> int | None:
        """Bytes of one expert's [out, in] matrix, or bias [out], with its scales."""
        if self.name in ELEMENT_BYTES or len(shape) < 2:
            return self.plain_bytes(math.prod(shape))
        packed = _PACKED.get(self.name or "")
        return None if packed is None else packed(self, *shape)

    def other_bytes(self, name: str, shape: tuple[int, ...], is_linear: bool) -> int | None:
        """Bytes of a tensor that is no expert's; None where the config does not tell."""
        if self.name in ELEMENT_BYTES or self.name == "mxfp4":  # which is for experts alone
            return self.plain_bytes(math.prod(shape))
        if self.name == "fp8":
            if is_linear and not self.is_plain(name):
                return _fp8(self, *shape)
            return self.plain_bytes(math.prod(shape))
        return None

    def is_plain(self, name: str) -> bool:
        """Whether `modules_to_not_convert` names the module of a tensor."""
        module = name.rpartition(".")[0]
        parts = module.split(".")
        return any(
            pattern in parts or fnmatch.fnmatchcase(module, f"{pattern}*") for pattern in self.plain
        )


def read_format(config: ModelConfig) -> Format:
    """The format that a config states. Raises MiractlError for a malformed quantization_config."""
    dtype = config.value("dtype")
    if dtype == "fp8":  # DeepSeek's own format; what is not FP8 is bf16
        return Format("fp8", "BF16", block=(128, 128))
    known = DTYPES.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else None
    if dtype is not None and known is None:
        raise config.error(f"dtype = {dtype!r}, expected one of {', '.join(DTYPES)}")
    name = None if known is None else known[0]
    stated = config.value("quantization")
    if stated is None:
        return Format(name, name)
    if not isinstance(stated, dict) or not isinstance(stated.get("quant_method"), str):
        raise config.error("quantization_config has no quant_method")
    method = stated["quant_method"].lower()
    if method == "mxfp4" and name is None:
        name = "BF16"  # gpt-oss says no dtype; what is not MXFP4 is bf16
    return Format(
        method,
        name,
        bits=_whole(config, stated, "bits", 0),
        group=_whole(config, stated, "group_size", -1),
        block=_block(config, stated),
        plain=tuple(n for n in stated.get("modules_to_not_convert") or () if isinstance(n, str)),
    )


def _whole(config: ModelConfig, stated: dict[str, Any], key: str, least: int) -> int:
    value = stated.get(key)
    if value is None:
        return 0
    if type(value) is not int or value < least:
        raise config.error(f"quantization_config.{key} = {value!r}, expected a whole number")
    return value


def _block(config: ModelConfig, stated: dict[str, Any]) -> tuple[int, int] | None:
    value = stated.get("weight_block_size")
    if value is None:
        return None
    if not isinstance(value, list) or [type(n) for n in value] != [int, int] or min(value) < 1:
        raise config.error(f"quantization_config.weight_block_size = {value!r}, expected two sizes")
    return value[0], value[1]


def _fp8(stored: Format, rows: int, columns: int) -> int | None:
    """One byte an element and a float32 scale a block; the last blocks may be ragged."""
    if stored.block is None:
        return None  # one scale a tensor, a row or none: the config does not say
    scales = math.ceil(rows / stored.block[0]) * math.ceil(columns / stored.block[1])
    return rows * columns + 4 * scales


def _mxfp4(stored: Format, rows: int, columns: int) -> int:
    """Groups of four-bit elements of a row, each with a scale byte."""
    return rows * math.ceil(columns / MXFP4_GROUP) * (MXFP4_GROUP // 2 + 1)


def _gptq(stored: Format, rows: int, columns: int) -> int | None:
    """Words packed along the input, zeros and float16 scales a group, a group index an input."""
    if not stored.bits or not stored.group:
        return None
    groups = 1 if stored.group < 0 else math.ceil(columns / stored.group)
    words = math.ceil(columns * stored.bits / 32) * rows
    zeros = groups * math.ceil(rows * stored.bits / 32)
    return 4 * (words + zeros + columns) + 2 * groups * rows


def _awq(stored: Format, rows: int, columns: int) -> int | None:
    """Words packed along the output, zeros and float16 scales a group."""
    if not stored.bits or not stored.group:
        return None
    groups = 1 if stored.group < 0 else math.ceil(columns / stored.group)
    packed = math.ceil(rows * stored.bits / 32)
    return 4 * packed * (columns + groups) + 2 * groups * rows


_PACKED: dict[str, Callable[..., int | None]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "gptq": _gptq,
    "awq": _awq,
}
