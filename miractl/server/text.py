"""From tokens to text as a client may see it: whole characters only, and nothing of a stop string.

Both classes are fed piece by piece and hold back only what the next piece can still change: an
incomplete character, or a proper prefix of a stop string. Joined pieces do not depend on how the
tokens were grouped, so an answer is the same streamed or not.
"""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
# UTF-8 needs at most four bytes for a character, so an incomplete one has at most three tokens.
MAX_INCOMPLETE = 3

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Incremental decoding. `ids[prefix:read]` is context: some decoders strip a leading space."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._prefix = 0
        self._read = 0
        self._emitted = 0  # characters of decode(ids[prefix:]) already handed out

    def push(self, token: int) -> str:
        """Text that `token` completes; empty while a character is incomplete."""
        self._ids.append(token)
        text = self._decode(self._ids[self._prefix :])
        held = len(text) - len(text.rstrip(REPLACEMENT))
        if len(self._ids) - self._read > MAX_INCOMPLETE:
            # Longer than any character: bytes that will never be one. They count as text.
            held = min(held, MAX_INCOMPLETE)
        delta = self._advance(text, len(text) - held)
        if not held:
            self._prefix, self._read = self._read, len(self._ids)
            self._emitted = len(self._decode(self._ids[self._prefix : self._read]))
        return delta

    def flush(self) -> str:
        """What is still held back, with U+FFFD for a character that was never completed."""
        text = self._decode(self._ids[self._prefix :])
        return self._advance(text, len(text))

    def _advance(self, text: str, end: int) -> str:
        delta = text[self._emitted : end]
        self._emitted = max(self._emitted, end)
        return delta


class StopFilter:
    """Ends a text before the first stop string. `stopped` is set when one was found."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Text that cannot be the beginning of a stop string; nothing once stopped."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = self._longest_prefix_at_end(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Held text that did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _longest_prefix_at_end(self, text: str) -> int:
        """Length of the longest end of `text` that is a proper prefix of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(len(stop) > size and stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
