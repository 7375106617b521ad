"""The checkpoint's files, read by byte ranges: no page of them is ever mapped.

What is read is owned: a file that is cut or replaced under a running server becomes an error of the
request that needs it, and cannot take the process with it. The kernel's page cache has only what
is nowhere else in the host's memory: rows of a table that stays in its file, and for a GPU, whose
slots are not in that memory, experts.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import EllipsisType

import torch

from miractl.checkpoint.encoding import StoredTensor
from miractl.checkpoint.header import TensorRange
from miractl.errors import MiractlError
from miractl.probe.direct_file import DirectFile
from miractl.runtime.decode import TORCH_DTYPES, decode

_log = logging.getLogger(__name__)


class CheckpointFiles:
    """Open files of one checkpoint. Reads are thread-safe: each names its own position."""

    def __init__(self, paths: Iterable[Path], *, are_cached: bool = False) -> None:
        """Raises MiractlError for a file that cannot be opened."""
        self._files: dict[Path, DirectFile] = {}
        self._tables: list[DirectFile] = []
        try:
            for path in sorted(set(paths)):
                self._files[path] = DirectFile(path, is_cached=are_cached)
        except OSError as error:
            self.close()
            raise MiractlError(f"cannot open {path}: {error.strerror}") from error
        if are_cached:
            return
        if cached := [path for path, file in self._files.items() if not file.is_direct]:
            _log.warning(
                "the file system of %s has no direct reads: slower, and the page cache is emptied "
                "behind each read",
                cached[0].parent,
            )

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.popitem()[1].close()
        while self._tables:
            self._tables.pop().close()

    def fault(self) -> str | None:
        """Which file was written to or cut, so that requests fail; None: all are as they were."""
        for path, file in list(self._files.items()):
            if file.is_changed:
                return f"{path} was written to since it was opened"
        return None

    def read_into(self, buffer: torch.Tensor, source: TensorRange) -> int:
        """Fill `buffer`, uint8 [source.nbytes]. Returns and raises as `scatter`."""
        return self.scatter([buffer], source.file, source.start)

    def scatter(self, buffers: Sequence[torch.Tensor], file: Path, start: int) -> int:
        """Fill uint8 buffers, one after the other, from one stretch of a file.

        Returns the bytes fetched, whole pages. One system call, straight into them, where stretch
        and buffers lie in whole pages. Raises MiractlError that names the file and the byte.
        """
        return self._files[file].read_into(
            [memoryview(b.numpy()) for b in buffers],  # type: ignore[arg-type]
            start,
        )

    def load(self, tensor: StoredTensor) -> torch.Tensor:
        """The numbers of one tensor in memory of its own."""
        raw = [torch.empty(part.nbytes, dtype=torch.uint8) for part in tensor.ranges]
        for buffer, part in zip(raw, tensor.ranges, strict=True):
            self.read_into(buffer, part)
        return decode(tensor, raw)

    def rows(self, table: StoredTensor) -> "TableRows":
        """Rows of a plain tensor [V, H]. Raises MiractlError for a file that cannot be opened."""
        path = table.ranges[0].file
        try:
            file = DirectFile(path, is_cached=True)
        except OSError as error:
            raise MiractlError(f"cannot open {path}: {error.strerror}") from error
        self._tables.append(file)
        return TableRows(file, table)


class TableRows:
    """Rows of a table in a file, read when they are asked for and kept by the page cache."""

    def __init__(self, file: DirectFile, table: StoredTensor) -> None:
        self._file, self._table = file, table
        self._range = table.ranges[0]
        self._nbytes = self._range.nbytes // max(1, len(self))  # of one row
        file.expect(self._range.start, self._range.nbytes)

    def __len__(self) -> int:
        return self._table.shape[0]

    def __getitem__(self, numbers: Sequence[int]) -> torch.Tensor:
        """[len(numbers), H] in the stored type. Raises as `CheckpointFiles.scatter`."""
        size = self._nbytes
        raw = torch.empty(len(numbers) * size, dtype=torch.uint8)
        room = memoryview(raw.numpy())  # type: ignore[arg-type]
        for place, number in enumerate(numbers):
            row = room[place * size : (place + 1) * size]
            self._file.read_into([row], self._range.start + number * size)
        return raw.view(TORCH_DTYPES[self._range.dtype]).view(-1, self._table.shape[1])


class LazyTensor:
    """What transformers' loader takes for a slice of a file: read when it is indexed."""

    def __init__(self, files: CheckpointFiles, tensor: StoredTensor) -> None:
        self._files, self._tensor = files, tensor

    def __getitem__(self, index: EllipsisType) -> torch.Tensor:
        return self._files.load(self._tensor)[index]
