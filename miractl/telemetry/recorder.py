"""Writes a routing trace while it happens: what `miractl.telemetry.trace` reads.

Tokens come step by step and are stored text by text, so they are spooled to a file without a name
beside the target and sorted when the recording ends. Memory is bounded by 32 bytes a token; the
file, which is written whole or not at all, by `MOST_BYTES`.
"""

import json
import os
import shutil
import tempfile
import zipfile
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from miractl.errors import MiractlError
from miractl.outfile import check_new

MOST_BYTES = 2**30
CHUNK = 4096  # tokens written at a time


class Recorder:
    """One recording. Not thread-safe. Errors of the disk are OSErrors."""

    def __init__(self, path: Path, layers: int, experts: int, top: int, meta: Mapping[str, Any]):
        """Raises MiractlError if nothing can be written there, UsageError if something is there."""
        check_new(path)
        self.path, self.full = path, False
        self._shape, self._meta = (layers, top), {**meta, "experts": experts}
        self._dtype = np.dtype(np.uint8 if experts <= 256 else np.uint16)
        self._record = layers * top * (self._dtype.itemsize + 2)
        self._sequences, self._steps, self._positions = array("q"), array("q"), array("q")
        self._rows = array("q")
        self._count = 0
        self._deflate = zlib.compressobj()
        try:
            self._tokens, self._seconds = _spool(path.parent), _spool(path.parent)
            self._tape = _spool(path.parent)
        except OSError as error:
            raise MiractlError(f"cannot record to {path}: {error.strerror}") from None

    def add(
        self,
        sequences: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        ids: npt.NDArray[Any],
        probabilities: npt.NDArray[Any],
        seconds: npt.NDArray[np.float64],
        tape: npt.NDArray[np.int64],
    ) -> None:
        """One step: sequences and positions [tokens], ids and probabilities [tokens, layers, k].

        `seconds` [layers] is when each layer's routing was known, `tape` what decisions were told.
        `full` says that this and all that comes is left out.
        """
        size = (len(self._sequences) + len(ids)) * self._record + (self._count + 1) * seconds.nbytes
        self.full = self.full or size + self._tape.tell() > MOST_BYTES
        if self.full:
            return
        flat = ids.astype(self._dtype).reshape(len(ids), -1).view(np.uint8)
        gates = probabilities.astype(np.float16).reshape(len(ids), -1).view(np.uint8)
        self._tokens.write(np.hstack([flat, gates]).tobytes())
        self._seconds.write(seconds.astype(np.float64).tobytes())
        self._tape.write(self._deflate.compress(tape.astype("<i8").tobytes()))
        self._sequences.extend(sequences.tolist())
        self._positions.extend(positions.tolist())
        self._steps.extend([self._count] * len(ids))
        self._rows.extend(range(len(ids)))
        self._count += 1

    def finish(self, more: Mapping[str, Any], tape: bool = True) -> int:
        """Write the trace and end; the number of tokens. None, and there is no file.

        `more` is known only now and goes into `meta`; without `tape` it is left out. Raises
        MiractlError if it cannot be written.
        """
        self._meta |= more
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            if self._sequences:
                with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as file:
                    self._write(file)
                    if tape:
                        self._write_tape(file)
                os.replace(partial, self.path)
        except OSError as error:
            raise MiractlError(f"cannot record to {self.path}: {error.strerror}") from None
        finally:
            partial.unlink(missing_ok=True)
            for spool in (self._tokens, self._seconds, self._tape):
                with suppress(OSError):  # of a full disk, for what it could not take before
                    spool.close()
        return len(self._sequences)

    def _write(self, file: zipfile.ZipFile) -> None:
        sequences = np.array(self._sequences)
        order = np.argsort(sequences, kind="stable")
        first = np.flatnonzero(np.diff(sequences[order], prepend=-1))
        small = {
            "seq_lens": np.diff(np.append(first, len(order))),
            "first_pos": np.array(self._positions)[order[first]],
            "steps": np.array(self._steps)[order],
            "rows": np.array(self._rows, np.uint32)[order],
            "meta": np.array(json.dumps(self._meta)),
        }
        for name, values in small.items():
            with _member(file, name, values.dtype, values.shape) as member:
                member.write(values.tobytes())
        self._tokens.flush()
        spool = np.memmap(self._tokens, np.uint8, "r", shape=(len(order), self._record))
        middle = self._record - 2 * self._shape[0] * self._shape[1]
        shape = (len(order), *self._shape)
        for name, dtype, part in (
            ("topk_ids", self._dtype, slice(0, middle)),
            ("topk_probs", np.dtype(np.float16), slice(middle, None)),
        ):
            with _member(file, name, dtype, shape) as member:
                for at in range(0, len(order), CHUNK):
                    member.write(spool[order[at : at + CHUNK], part].tobytes())
        steps = (self._count, self._shape[0])
        with _member(file, "gate_seconds", np.dtype(np.float64), steps) as member:
            _copy(self._seconds, member)

    def _write_tape(self, file: zipfile.ZipFile) -> None:
        self._tape.write(self._deflate.flush())
        with _member(file, "tape", np.dtype(np.uint8), (self._tape.tell(),)) as member:
            _copy(self._tape, member)


def _copy(spool: IO[bytes], to: IO[bytes]) -> None:
    spool.seek(0)
    shutil.copyfileobj(spool, to)


def _spool(folder: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


@contextmanager
def _member(
    file: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> Iterator[IO[bytes]]:
    """An array of an .npz file, to be filled in order."""
    with file.open(f"{name}.npy", "w", force_zip64=True) as member:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(member, {**header, "shape": shape})
        yield member
