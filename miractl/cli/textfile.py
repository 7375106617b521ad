"""A text file that an option names."""

from pathlib import Path

from miractl.errors import UsageError


def read_text(path: Path, what: str) -> str:
    """All of it; `what` it is called in an error. Raises UsageError for what is no UTF-8 text."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{what} {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {path}: not UTF-8 text (byte {error.start})") from None
    if "\0" in text:
        raise UsageError(f"{what} {path}: not text (it has zero bytes)")
    return text
