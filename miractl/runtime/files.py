"""The checkpoint's files, read by byte ranges: no page of them is ever mapped.

What is read is owned: a file that is cut or replaced under a running server becomes an error of the
request that needs it, and cannot take the process with it.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import EllipsisType

import torch

from miractl.checkpoint.encoding import StoredTensor
from miractl.checkpoint.header import TensorRange
from miractl.errors import MiractlError
from miractl.runtime.decode import decode


class CheckpointFiles:
    """Open files of one checkpoint. Reads are thread-safe: each names its own position."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._descriptors: dict[Path, int] = {
            path: os.open(path, os.O_RDONLY) for path in sorted(set(paths))
        }

    def close(self) -> None:
        """Close the files."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def read_into(self, buffer: torch.Tensor, source: TensorRange) -> None:
        """Fill `buffer`, uint8 [source.nbytes]. Raises MiractlError that names the file."""
        self.scatter([buffer], source.file, source.start)

    def scatter(self, buffers: Sequence[torch.Tensor], file: Path, start: int) -> None:
        """Fill uint8 buffers, one after the other, from one stretch of a file: one system call.

        Raises MiractlError that names the file.
        """
        views = [memoryview(b.numpy()) for b in buffers if b.numel()]  # type: ignore[arg-type]
        try:
            while views:
                step = os.preadv(self._descriptors[file], views, start)
                if step == 0:
                    size, needs = os.fstat(self._descriptors[file]).st_size, sum(map(len, views))
                    raise MiractlError(
                        f"{file.name} now ends at byte {size:,}, a tensor needs {start + needs:,}"
                    )
                start += step
                while views and step >= len(views[0]):
                    step -= len(views.pop(0))
                if step:
                    views[0] = views[0][step:]
        except OSError as error:
            raise MiractlError(f"cannot read {file}: {error.strerror}") from error

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
