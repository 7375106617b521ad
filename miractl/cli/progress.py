"""How far a measurement is: one line on stderr that is written over."""

import sys


def show_progress(what: str, done: int, count: int) -> None:
    """Write the line; nothing unless stderr is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{what} {done:,} of {count:,}")
        sys.stderr.flush()


def clear_progress() -> None:
    """Remove the line."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
