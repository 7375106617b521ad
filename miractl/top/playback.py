"""A recording in the place of a server: each question is answered with the next snapshot."""

from collections.abc import Sequence
from itertools import pairwise

from miractl.telemetry.snapshot import Snapshot

DEFAULT = 1.0  # seconds


class Playback:
    """Plays snapshots in their order and stays at the last."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        """`snapshots`: at least one."""
        self._snapshots, self._next = snapshots, 0
        self.held = False

    @property
    def interval(self) -> float:
        """Seconds between two of them as they were recorded, the median."""
        times = [snapshot.timestamp for snapshot in self._snapshots]
        gaps = sorted(b - a for a, b in pairwise(times) if b > a)
        return gaps[len(gaps) // 2] if gaps else DEFAULT

    @property
    def place(self) -> str:
        """Where the playback is, for a reader."""
        return f"record {self._next} of {len(self._snapshots)}"

    def status(self) -> Snapshot:
        """The next snapshot; the same again while held, and at the end."""
        if self._next == 0 or not (self.held or self._next == len(self._snapshots)):
            self._next += 1
        return self._snapshots[self._next - 1]
