"""Pieces of text: joined they are the whole, and no piece shows what the next would change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miractl.server.text import Detokenizer, StopFilter

BROKEN = "\ufffd"


def decode_bytes(ids: list[int]) -> str:
    """A tokenizer of one byte a token, as byte-level BPE falls back to."""
    return bytes(ids).decode("utf-8", "replace")


def decode_fallback(ids: list[int]) -> str:
    """SentencePiece's byte fallback: each byte of a broken run is U+FFFD."""
    try:
        return bytes(ids).decode()
    except UnicodeDecodeError:
        return BROKEN * len(ids)


def decode_words(ids: list[int]) -> str:
    """A decoder that strips the first blank, as SentencePiece does."""
    return "".join(f" w{i}" for i in ids)[1:]


def pieces(decode, ids: list[int]) -> list[str]:
    text = Detokenizer(decode)
    return [*(text.push(token) for token in ids), text.flush()]


@pytest.mark.parametrize("decode", [decode_bytes, decode_fallback])
@pytest.mark.parametrize("text", ["日本語とemoji 🙂", "👨‍👩‍👧‍👦!", "é", "plain"])
def test_characters_of_several_tokens_come_whole(decode, text: str) -> None:
    found = pieces(decode, list(text.encode()))
    assert "".join(found) == text
    assert not any(BROKEN in piece for piece in found)


def test_a_character_comes_with_its_last_token() -> None:
    assert pieces(decode_bytes, list("a中b".encode())) == ["a", "", "", "中", "b", ""]


@given(st.binary(max_size=40))
def test_any_bytes_join_to_the_full_decode(data: bytes) -> None:
    assert "".join(pieces(decode_bytes, list(data))) == decode_bytes(list(data))


def test_bytes_that_are_never_a_character_do_not_stall() -> None:
    text = Detokenizer(decode_bytes)
    shown = "".join(text.push(0x80) for _ in range(20))
    assert len(shown) == 17


def test_cut_character_is_flushed_as_broken() -> None:
    assert pieces(decode_bytes, [*b"ab", 0xE4, 0xB8])[-1] == BROKEN


def test_blanks_survive_a_decoder_that_strips_the_first() -> None:
    assert "".join(pieces(decode_words, [1, 2, 3])) == "w1 w2 w3"


def filtered(stops: list[str], parts: list[str]) -> tuple[list[str], bool]:
    stop = StopFilter(stops)
    shown = [stop.push(part) for part in parts]
    return [*shown, stop.flush()], stop.stopped


@pytest.mark.parametrize(
    ("stops", "parts", "shown", "stopped"),
    [
        (["DEFGHIJ"], ["ABC", "DEFG", "HIJ", "K"], "ABC", True),
        (["brown"], ["The quick ", "br", "own fox"], "The quick ", True),
        (["brown"], ["The quick ", "br"], "The quick br", False),
        (["aab"], ["a", "a", "a", "b", "c"], "a", True),
        (["\n\n"], ["one\n", "two\n", "\nthree"], "one\ntwo", True),
        (["xyz", "b"], ["abc"], "a", True),
        ([], ["any", "thing"], "anything", False),
    ],
)
def test_stop_strings(stops: list[str], parts: list[str], shown: str, stopped: bool) -> None:
    found, ended = filtered(stops, parts)
    assert ("".join(found), ended) == (shown, stopped)


def test_only_a_possible_beginning_is_held_back() -> None:
    assert filtered(["stop"], ["ast", "art", "s"])[0] == ["a", "start", "", "s"]


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=4), st.integers(1, 5))
def test_grouping_does_not_change_the_text(text: str, stop: str, size: int) -> None:
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    found, stopped = filtered([stop], parts)
    assert "".join(found) == text.partition(stop)[0]
    assert stopped == (stop in text)
