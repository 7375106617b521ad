"""A deadline for chat templates: they come with a checkpoint, and may loop for ever.

The sandbox of jinja bounds a `range`, not loops within loops. So each line of a template that runs
looks at the clock of its thread: others who compute at the same time cost it nothing.
"""

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

TEMPLATE = "<template>"  # the file name of what jinja compiles from a string

T = TypeVar("T")


class EndlessError(Exception):
    """A template computed longer than it may."""


def within(seconds: float, work: Callable[[], T]) -> T:
    """The result of `work`. Raises EndlessError once templates in it computed for `seconds`."""
    end = time.thread_time() + seconds

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        if time.thread_time() > end:
            raise EndlessError(f"it has not ended after {seconds:g} s")
        return step

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return step if frame.f_code.co_filename == TEMPLATE else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        return work()
    finally:
        sys.settrace(before)
