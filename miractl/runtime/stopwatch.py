"""A clock that the token path punches: every moment of a step belongs to exactly one part.

The thread that runs the model says what it begins; that ends what it did before. On a GPU kernels
run behind this thread: parts then say when they were launched, and waiting shows where the thread
caught up with them.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import psutil
import torch

from miractl.runtime.lookahead import router_of
from miractl.runtime.sequences import Sequences
from miractl.telemetry.timeline import PARTS, Moved, StepTimes

KEPT = 4096  # steps
SECTOR = 512  # bytes; what Linux counts reads in


class Stopwatch:
    """Times the steps of one model. Belongs to the thread that runs it; readers copy `steps`."""

    def __init__(
        self,
        totals: Callable[[], Moved],
        clock: Callable[[], float],
        os_bytes: Callable[[], int | None],
    ) -> None:
        """`totals` and `os_bytes` count from the start of the process."""
        self.steps: deque[StepTimes] = deque(maxlen=KEPT)
        self.part: str | None = None  # None: nothing runs, and what passes belongs to no step
        self._clock, self._totals, self._os_bytes = clock, totals, os_bytes
        self._count = self._tokens = self._sequences = 0
        self._seconds: dict[str, float] = {}
        self._since = self._began = 0.0
        self._before: Moved = Moved()
        self._read: int | None = None

    def begin(self, part: str) -> None:
        """What follows belongs to `part`. Outside of a step nothing is timed."""
        ends, clock = self.part, self._clock
        if ends is not None:
            now = clock()
            self._seconds[ends] += now - self._since
            self._since = now
            self.part = part

    def step_begins(self, tokens: int, sequences: int, goes_on: bool) -> None:
        """A pass through the model begins. `goes_on`: with a sequence of the pass before."""
        if not (goes_on and self.part == "between"):
            self._restart(self._clock(), self._totals(), self._os_bytes())
            self.part = "attention"
        self._tokens, self._sequences = tokens, sequences
        self.begin("attention")

    def step_ends(self) -> None:
        """The pass has ended: book it, and time what lies between it and the next."""
        self.begin("between")
        totals, read = self._totals(), self._os_bytes()
        unknown = read is None or self._read is None
        self._count += 1
        self.steps.append(
            StepTimes(
                step=self._count,
                tokens=self._tokens,
                sequences=self._sequences,
                began=time.time() - (self._since - self._began),
                seconds=self._since - self._began,
                parts=self._seconds,
                moved=totals - self._before,
                os_bytes=None if unknown else read - self._read,  # type: ignore[operator]
            )
        )
        self._restart(self._since, totals, read)

    def _restart(self, now: float, totals: Moved, read: int | None) -> None:
        self._began = self._since = now
        self._before, self._read = totals, read
        self._seconds = dict.fromkeys(PARTS, 0.0)


def watch(
    model: torch.nn.Module,
    blocks: Iterable[torch.nn.Module],
    sequences: Sequences,
    stopwatch: Stopwatch,
) -> None:
    """Let the passes, routers and output head of `model` punch the clock; `blocks` hold experts.

    `sequences` must watch the model already: they say whose tokens a pass has.
    """

    def begins(module: torch.nn.Module, args: Any) -> None:
        segments = sequences.current
        tokens, goes_on = sum(map(len, segments)), any(s.position for s in segments)
        stopwatch.step_begins(tokens, len(segments), goes_on)

    def enters(part: str) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: Any) -> None:
            # Look-ahead asks routers too, while it is being decided.
            if stopwatch.part == "attention":
                stopwatch.begin(part)

        return hook

    for block in blocks:
        router = router_of(block)
        if router is not None:
            router.register_forward_pre_hook(enters("router"))
    head = model.get_output_embeddings()  # type: ignore[operator]
    if head is not None:
        head.register_forward_pre_hook(enters("head"))
    model.register_forward_pre_hook(begins)
    model.register_forward_hook(lambda *_: stopwatch.step_ends())


def kernel_reads() -> Callable[[], int | None]:
    """Bytes that the kernel has fetched from storage for this process; None where it is mute."""
    process = psutil.Process()

    def read() -> int | None:
        try:
            return int(process.io_counters().read_bytes)
        except (AttributeError, OSError, psutil.Error):
            return None

    if sys.platform == "linux" and read() is not None:
        import resource

        # The same count without a file to read, which is slow in the middle of a token.
        return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_inblock * SECTOR
    return read
