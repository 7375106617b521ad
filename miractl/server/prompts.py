"""Text made into tokens, within bounds: what cannot fit is refused before it is tokenised."""

import json
from collections.abc import Callable
from typing import Any

from jinja2 import TemplateError

from miractl.runtime.heap import give_back
from miractl.server.deadline import EndlessError, within
from miractl.server.errors import ApiError

TEMPLATE_SECONDS = 2.0  # of computing
LARGE = 2**16  # bytes of text from which tokenising leaves noticeable holes in the heap
# Normalisers that never make a text shorter, and NFC, that may leave a third of its bytes.
FAITHFUL = {"Sequence": 1, "Prepend": 1, "Replace": 1, "NFC": 3}


class BoundedTokenizer:
    """A model's tokenizer as the handlers use it.

    Args:
        tokenizer: of transformers.
        require: Raises ApiError when so many tokens at least (the number, and in words) cannot fit.
    """

    def __init__(self, tokenizer: Any, require: Callable[[int, str], None]) -> None:
        self._tokenizer = tokenizer
        self._require = require
        self._most_bytes = most_bytes_of_a_token(tokenizer)

    def __call__(self, text: str, **options: Any) -> Any:
        """Tokens of a text. Raises ApiError before tokenising where they cannot fit."""
        size = len(text.encode("utf-8", "replace"))
        if self._most_bytes is not None:
            least = -(-size // self._most_bytes)
            self._require(least, f"at least {least} tokens")
        try:
            return self._tokenizer(text, **options)
        finally:
            if size >= LARGE:
                give_back()

    def apply_chat_template(self, messages: Any, **options: Any) -> Any:
        """Tokens of a conversation.

        Raises ApiError 400 for what the template refuses, 500 when it does not end, or breaks.
        """
        options |= {"tokenize": False, "return_dict": False}
        try:
            text = within(
                TEMPLATE_SECONDS,
                lambda: self._tokenizer.apply_chat_template(messages, **options),
            )
        except TemplateError as error:
            message = f"the chat template refuses these messages: {error}"
            raise ApiError(400, message, param="messages", code="invalid_value") from error
        except EndlessError as error:
            message = f"the chat template of this model does not end: {error}"
            raise ApiError(500, message, code="chat_template_failed") from error
        except Exception as error:  # whatever the template of a checkpoint does
            message = f"the chat template of this model fails: {type(error).__name__}: {error}"
            raise ApiError(500, message, code="chat_template_failed") from error
        return self(text, add_special_tokens=False)


def most_bytes_of_a_token(tokenizer: Any) -> int | None:
    """Bytes of text that one token stands for at most; None where there may be no bound.

    There is one where every byte becomes part of some token: with a byte-level vocabulary, or with
    tokens for single bytes.
    """
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None:
        return None
    byte_level = "ByteLevel" in _kinds(core.pre_tokenizer) | _kinds(core.normalizer)
    shrinks = [FAITHFUL.get(kind) for kind in _kinds(core.normalizer) - {"ByteLevel"}]
    added = tokenizer.added_tokens_decoder.values()
    if (
        None in shrinks
        or not (byte_level or getattr(core.model, "byte_fallback", False))
        or any(token.lstrip or token.rstrip for token in added)  # they swallow blanks
    ):
        return None
    # In UTF-8, where the characters that stand for bytes take one or two: never too few.
    longest = max((len(entry.encode("utf-8")) for entry in tokenizer.get_vocab()), default=1)
    return longest * max((shrink for shrink in shrinks if shrink is not None), default=1)


def _kinds(part: Any) -> set[str]:
    """The types in a part of a tokenizer, those of a sequence included."""
    found: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("type"), str):
                found.add(value["type"])
            for child in value.values():
                walk(child)
        elif isinstance(value, list):
            for child in value:
                walk(child)

    if part is not None:
        walk(json.loads(part.__getstate__()))
    return found
