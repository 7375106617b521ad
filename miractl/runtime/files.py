"""The checkpoint's files, read by byte ranges: no page of them is ever mapped.

What is read is owned: a file that is cut or replaced under a running server becomes an error of the
request that needs it, and cannot take the process with it.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from types import EllipsisType

import torch

from miractl.checkpoint.encoding import StoredTensor
from miractl.checkpoint.header import TensorRange
from miractl.errors import MiractlError
from miractl.runtime.decode import decode


class CheckpointFiles:
    """Open files of one checkpoint. Reads are thread-safe: each names its own position."""

    def __init__(self, tensors: Iterable[StoredTensor]) -> None:
        paths = {part.file for tensor in tensors for part in tensor.ranges}
        self._descriptors: dict[Path, int] = {p: os.open(p, os.O_RDONLY) for p in sorted(paths)}

    def close(self) -> None:
        """Close the files."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def read_into(self, buffer: torch.Tensor, source: TensorRange) -> None:
        """Fill `buffer`, uint8 [source.nbytes]. Raises MiractlError that names the file."""
        view = memoryview(buffer.numpy())  # type: ignore[arg-type]
        descriptor, done = self._descriptors[source.file], 0
        try:
            while done < source.nbytes:
                step = os.preadv(descriptor, [view[done:]], source.start + done)
                if step == 0:
                    size = os.fstat(descriptor).st_size
                    raise MiractlError(
                        f"{source.file.name} now ends at byte {size:,}, "
                        f"a tensor needs {source.start + source.nbytes:,}"
                    )
                done += step
        except OSError as error:
            raise MiractlError(f"cannot read {source.file}: {error.strerror}") from error

    def load(self, tensor: StoredTensor) -> torch.Tensor:
        """The numbers of one tensor in memory of its own."""
        raw = [torch.empty(part.nbytes, dtype=torch.uint8) for part in tensor.ranges]
        for buffer, part in zip(raw, tensor.ranges, strict=True):
            self.read_into(buffer, part)
        return decode(tensor, raw)


class LazyTensor:
    """What transformers' loader takes for a slice of a file: read when it is indexed."""

    def __init__(self, files: CheckpointFiles, tensor: StoredTensor) -> None:
        self._files, self._tensor = files, tensor

    def __getitem__(self, index: EllipsisType) -> torch.Tensor:
        return self._files.load(self._tensor)[index]
