"""Prompts are bounded: refused before tokenising, on their own threads, templates with an end."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from miractl.server.deadline import EndlessError, within
from miractl.server.errors import ApiError
from miractl.server.prompts import BoundedTokenizer, most_bytes_of_a_token
from tests.server.tiny import tiny_tokenizer

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
USER = [{"role": "user", "content": "the cat"}]


def accept(tokens: int, words: str) -> None:
    """A window without end."""


class Counting:
    """A tokenizer that must not be asked."""

    def __init__(self) -> None:
        self.inner = tiny_tokenizer()
        self.asked = 0

    def __call__(self, text: str, **options: object) -> object:
        self.asked += 1
        return self.inner(text, **options)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


def test_what_cannot_fit_is_refused_before_it_is_tokenised() -> None:
    def require(tokens: int, words: str) -> None:
        if tokens >= 100:
            raise ApiError(400, words)

    counting = Counting()
    bounded = BoundedTokenizer(counting, require)
    longest = most_bytes_of_a_token(counting)
    assert longest is not None
    with pytest.raises(ApiError, match="at least 100 tokens"):
        bounded("a" * (99 * longest + 1))
    with pytest.raises(ApiError, match=r"at least 10\d tokens"):
        bounded.apply_chat_template([{"role": "user", "content": "a" * 99 * longest}])
    assert counting.asked == 0
    assert bounded("a" * 99 * longest)["input_ids"]
    assert counting.asked == 1


@pytest.mark.parametrize("text", ["the cat sat", "ÄÖ 中文 🙂", " " * 50, "<|end|>" * 9])
def test_no_token_stands_for_more_bytes(text: str) -> None:
    tokenizer = tiny_tokenizer()
    longest = most_bytes_of_a_token(tokenizer)
    assert longest is not None
    assert len(text.encode()) <= longest * len(tokenizer(text)["input_ids"])


def made(normalizer: object = None, *, byte_level: bool = True, **added: bool) -> object:
    core = Tokenizer(models.BPE({"a": 0, "bcd": 1}, []))
    if byte_level:
        core.pre_tokenizer = pre_tokenizers.ByteLevel()
        core.decoder = decoders.ByteLevel()
    if normalizer is not None:
        core.normalizer = normalizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    if added:
        from tokenizers import AddedToken

        tokenizer.add_special_tokens({"eos_token": AddedToken("<e>", **added)})
    return tokenizer


def test_the_bound_holds_only_where_no_byte_gets_lost() -> None:
    assert most_bytes_of_a_token(made()) == 3
    assert most_bytes_of_a_token(made(normalizers.NFC())) == 9
    assert most_bytes_of_a_token(made(normalizers.Strip())) is None
    assert most_bytes_of_a_token(made(byte_level=False)) is None
    assert most_bytes_of_a_token(made(rstrip=True)) is None
    assert most_bytes_of_a_token(object()) is None


def test_tokens_of_a_conversation_are_those_of_transformers() -> None:
    tokenizer = tiny_tokenizer()
    ours = BoundedTokenizer(tokenizer, accept).apply_chat_template(
        USER, add_generation_prompt=True, tokenize=True, return_dict=True
    )
    theirs = tokenizer.apply_chat_template(USER, add_generation_prompt=True, return_dict=True)
    assert ours["input_ids"] == theirs["input_ids"]


@pytest.mark.parametrize(
    ("template", "status", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", 400, "roles must alternate"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", 500, "Range too big"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", 500, "RecursionError"),
        ("{{ 1 / 0 }}", 500, "ZeroDivisionError"),
    ],
)
def test_what_a_template_does_is_said(template: str, status: int, says: str) -> None:
    bounded = BoundedTokenizer(tiny_tokenizer(template), accept)
    with pytest.raises(ApiError, match=says) as caught:
        bounded.apply_chat_template(USER)
    assert caught.value.status == status


def test_an_endless_template_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miractl.server.prompts.TEMPLATE_SECONDS", 0.05)
    bounded = BoundedTokenizer(tiny_tokenizer(ENDLESS), accept)
    with pytest.raises(ApiError, match="does not end") as caught:
        bounded.apply_chat_template(USER)
    assert json.dumps(caught.value.to_json())
    assert (caught.value.status, caught.value.code) == (500, "chat_template_failed")


def test_a_deadline_is_for_templates_alone() -> None:
    assert within(0.0, lambda: sum(range(1000))) == 499500
    tokenizer = tiny_tokenizer()
    with pytest.raises(EndlessError):
        within(0.0, lambda: tokenizer.apply_chat_template(USER, tokenize=False))
    assert tokenizer.apply_chat_template(USER, tokenize=False)
