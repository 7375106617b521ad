"""Root mean square norms by the library."""

import ctypes

import numpy as np

from miractl.native.checks import Floats
from miractl.native.kernels import Pool
from miractl.native.library import library
from miractl.native.memory import Span

LANES = (8, 16, 4)  # torch's vectors for AVX2, AVX-512 and NEON


class NormStruct(ctypes.Structure):
    """mira_norm."""

    _fields_ = [
        ("scale", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("columns", "lanes")),
        ("eps", ctypes.c_float),
    ]


class Norm:
    """x / sqrt(mean of x^2 + eps) of each row, each column scaled."""

    def __init__(self, scale: Floats, eps: float, lanes: int) -> None:
        """`scale` [columns]; `lanes` of the vectors in which squares are added, one of LANES.

        Raises ValueError unless the scale is float32.
        """
        if scale.dtype != np.float32 or scale.ndim != 1:
            raise ValueError(f"Got scale of {scale.dtype} {scale.shape} but expected float32 [n]")
        self.columns = scale.size
        self._scale = Span.of(np.ascontiguousarray(scale))
        self.struct = NormStruct(self._scale.address, self.columns, lanes, eps)
        self._address = ctypes.addressof(self.struct)
        self._call = library().mira_rms_norm

    def norm_at(self, x: int, rows: int, y: int, pool: Pool | None = None) -> None:
        """Of float32 x[rows, columns] at an address, to address y, which may be the same.

        The caller answers for the memory.
        """
        self._call(pool and pool.address, self._address, x, rows, y)
