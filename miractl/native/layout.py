"""What a block is: formats, shapes of matrices and experts, and their bytes.

docs/formats.md draws the layouts. Nothing here needs the compiled library.
"""

import math
from dataclasses import dataclass
from enum import IntEnum

PANEL = 8  # rows that are stored together
BLOCK_ALIGNMENT = 64
RECORD_ALIGNMENT = 4096  # direct reads want it
I4K_HEAD = 2 * PANEL * 4  # float32 D and E of a panel
MOST = 2**24  # rows, columns, hidden or inner


class Activation(IntEnum):
    """What an expert does to its gate; the numbers are those of the library."""

    SILU = 0
    GELU_TANH = 1
    GELU_ERF = 2
    RELU2 = 3


@dataclass(frozen=True, slots=True)
class Format:
    """How weights are stored: `i8` in groups of 32, 64 or 128 columns, or `i4k` in groups of 32."""

    name: str
    group: int

    def __post_init__(self) -> None:
        groups = {"i8": (32, 64, 128), "i4k": (32,)}.get(self.name)
        if groups is None:
            raise ValueError(f"Got format {self.name!r} but expected 'i8' or 'i4k'")
        if self.group not in groups:
            raise ValueError(f"Got group {self.group} of {self.name} but expected one of {groups}")

    @property
    def code(self) -> int:
        """The library's number of the format."""
        return 0 if self.name == "i8" else 1


I8 = Format("i8", 128)
I4K = Format("i4k", 32)


def _check_size(name: str, value: int, multiple: int) -> None:
    if not isinstance(value, int) or not 0 < value <= MOST or value % multiple:
        raise ValueError(
            f"Got {name} = {value!r} but expected a multiple of {multiple} up to {MOST}"
        )


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """W[rows, columns] of a linear layer: y = x W^T."""

    format: Format
    rows: int
    columns: int

    def __post_init__(self) -> None:
        _check_size("rows", self.rows, PANEL)
        _check_size("columns", self.columns, self.format.group)

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes, which come first in a block."""
        codes = self.rows * self.columns
        return codes if self.format.name == "i8" else codes // 2

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales, which follow."""
        groups = self.columns // self.format.group
        per_panel = groups * PANEL * 2 + (I4K_HEAD if self.format.name == "i4k" else 0)
        return self.rows // PANEL * per_panel

    @property
    def nbytes(self) -> int:
        """Bytes of a block, a multiple of its alignment."""
        return _padded(self.code_bytes + self.scale_bytes, BLOCK_ALIGNMENT)


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """One expert: hidden -> inner -> hidden.

    Its inner values are `act(min(gate, limit)) * (clamp(up, -limit, limit) + shift)`, without a
    gate `act(min(up, limit))`, where SILU is `x / (1 + exp(-slope x))`. gpt-oss is `biased`, SILU
    with slope 1.702, limit 7 and shift 1.
    """

    format: Format
    hidden: int
    inner: int
    gated: bool = True
    biased: bool = False
    activation: Activation = Activation.SILU
    slope: float = 1.0
    limit: float = math.inf
    shift: float = 0.0

    def __post_init__(self) -> None:
        _check_size("hidden", self.hidden, self.format.group)
        _check_size("inner", self.inner, self.format.group)
        if not self.limit > 0:
            raise ValueError(f"Got limit = {self.limit} but expected a number above 0")
        if not (math.isfinite(self.slope) and math.isfinite(self.shift)):
            raise ValueError(f"Got slope = {self.slope}, shift = {self.shift}: not finite")

    @property
    def gate_up(self) -> MatrixShape:
        """Gate rows, then up rows; without a gate just up."""
        rows = 2 * self.inner if self.gated else self.inner
        return MatrixShape(self.format, rows, self.hidden)

    @property
    def down(self) -> MatrixShape:
        """The way back."""
        return MatrixShape(self.format, self.hidden, self.inner)

    @property
    def bias_count(self) -> int:
        """float32 biases at the end of the block: those of gate and up, then of down."""
        return self.gate_up.rows + self.hidden if self.biased else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the expert's block."""
        return self.gate_up.nbytes + self.down.nbytes + 4 * self.bias_count

    @property
    def record_bytes(self) -> int:
        """Bytes of the block, padded so that the next one can be read directly."""
        return _padded(self.nbytes, RECORD_ALIGNMENT)


def _padded(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment
