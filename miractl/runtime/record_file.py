"""The records of a folder that is being packed: written by threads, believed by their digests."""

import hashlib
import os
import threading

from miractl.checkpoint.packed import DIGEST_BYTES, DIGESTS, RECORDS, Manifest
from miractl.native.layout import RECORD_ALIGNMENT
from miractl.native.memory import aligned_empty
from miractl.policy.keys import ExpertKey
from miractl.runtime.recipe import Recipe

_ZERO = bytes(DIGEST_BYTES)


class RecordFile:
    """The records of a folder and their digests. Threads write different records."""

    def __init__(self, manifest: Manifest, recipe: Recipe) -> None:
        self._manifest, self._recipe = manifest, recipe
        self._records = os.open(manifest.folder / RECORDS, os.O_RDWR)
        self._digests = os.open(manifest.folder / DIGESTS, os.O_RDWR)
        self._buffers = threading.local()

    def close(self) -> None:
        """Bring everything to the disk and close the files."""
        os.fsync(self._records)
        os.fsync(self._digests)
        os.close(self._records)
        os.close(self._digests)

    def write(self, number: int) -> None:
        """Make a record, unless it is there already."""
        if self._is_done(number):
            return
        nbytes = self._manifest.record.nbytes
        if not hasattr(self._buffers, "block"):
            self._buffers.block = aligned_empty(nbytes, RECORD_ALIGNMENT)
        block = self._buffers.block
        block[:] = 0
        self._recipe.fill(ExpertKey(*divmod(number, self._manifest.experts)), block)
        write_all(self._records, memoryview(block), number * nbytes)
        digest = hashlib.sha256(block).digest()
        write_all(self._digests, memoryview(digest), number * DIGEST_BYTES)

    def _is_done(self, number: int) -> bool:
        digest = os.pread(self._digests, DIGEST_BYTES, number * DIGEST_BYTES)
        if digest == _ZERO:
            return False
        nbytes = self._manifest.record.nbytes
        return hashlib.sha256(os.pread(self._records, nbytes, number * nbytes)).digest() == digest


def write_all(descriptor: int, data: memoryview, at: int) -> None:
    """Write all of `data` at a byte of a file; threads may do so at once. Raises OSError."""
    while data:
        step = os.pwrite(descriptor, data, at)
        data, at = data[step:], at + step
