"""The nearest known word to what someone typed."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'a10'?` for the closest known word, or nothing, to end a message with."""
    match = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f"; did you mean {match[0]!r}?" if match else ""
