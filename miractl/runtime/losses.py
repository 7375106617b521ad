"""Tokens that cannot be computed, because bytes that they need could not be read.

In general such a pass ends with an error. Whoever runs several requests in one pass may take the
losses instead: the lost tokens get zeros for what they could not have, which touches no other
token's numbers, and their requests are to be failed once the pass is over.
"""

from collections.abc import Iterable


class Losses:
    """Those of the passes since they were taken last. Belongs to the thread that runs the model."""

    def __init__(self) -> None:
        self.are_taken = False  # whether somebody takes them; else errors are raised
        self._why: dict[int, str] = {}

    def add(self, rows: Iterable[int], error: Exception) -> None:
        """Tokens of the pass under way, as rows of its [T, H]. Raises the error if nobody takes."""
        if not self.are_taken:
            raise error
        for row in rows:
            self._why.setdefault(int(row), str(error))

    def take(self) -> dict[int, str]:
        """Why each row is lost, of one pass; they are forgotten."""
        why, self._why = self._why, {}
        return why
