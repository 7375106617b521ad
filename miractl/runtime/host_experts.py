"""Missing experts computed on the host while the GPU computes hits.

What goes to the host was computed before the layer's experts, so fetching it waits for none of
them; outputs go back in the order of the computing stream, for which nobody waits. Pinned memory
is torch's, and is not used again before its copies are over.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from miractl.runtime.cache import NO_SLOT
from miractl.runtime.compute import KernelCompute
from miractl.runtime.mixture import Elsewhere
from miractl.runtime.streams import Streams


class HostExperts:
    """The kernels on records in the host tier, beside a device."""

    def __init__(self, kernels: KernelCompute, streams: Streams) -> None:
        self._kernels, self._streams = kernels, streams

    def beside(self, layer: int, x: torch.Tensor, ids: npt.NDArray[np.int64]) -> Elsewhere:
        """What computes experts of a layer for x [T, H] and ids [T, k], which are there now."""
        there, top = self._streams.computed(), ids.shape[1]

        def outputs(pairs: npt.NDArray[np.int64], experts: Sequence[int]) -> torch.Tensor:
            rows, place = np.unique(pairs // top, return_inverse=True)
            given = self._pinned(x, len(rows))
            self._streams.fetch(given, x, None if len(rows) == len(x) else rows, there)
            group = [(expert, NO_SLOT) for expert in experts]
            parts = self._kernels.outputs(layer, given.float(), ids[rows], group)
            told, y = self._pinned(x, len(pairs)), x.new_empty(len(pairs), x.shape[1])
            told.copy_(parts[torch.from_numpy(place * top + pairs % top)])
            self._streams.deliver(y, told)
            return y

        return outputs

    def _pinned(self, like: torch.Tensor, rows: int) -> torch.Tensor:
        """Pinned room for so many rows, in their type."""
        size = rows * like.shape[1] * like.element_size()
        return self._streams.pinned(size).view(like.dtype).view(rows, like.shape[1])
