"""Every field is carried out, neutral, or refused by name."""

import json

import pytest

from miractl.server.errors import ApiError
from miractl.server.job import Sampling
from miractl.server.requests import NEUTRAL, ChatRequest, CompletionRequest, Request, parse

TEXT = {"prompt": "a"}
CHAT = {"messages": [{"role": "user", "content": "a"}]}


def refusal(kind: type[Request], body: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(kind, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert caught.value.status == 400
    assert "\n" not in caught.value.message
    return caught.value


def accept(kind: type[Request], body: object) -> Request:
    return parse(kind, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"max_tokens": 0}, "max_tokens", "got 0"),
        ({"max_tokens": -5}, "max_tokens", "got -5"),
        ({"max_tokens": 10**12}, "max_tokens", "less than or equal"),
        ({"max_tokens": 1.5}, "max_tokens", "integer"),
        ({"max_tokens": "5"}, "max_tokens", "integer"),
        ({"max_tokens": True}, "max_tokens", "integer"),
        ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
        ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"top_p": 1.1}, "top_p", "less than or equal to 1"),
        ({"top_p": -1}, "top_p", "got -1"),
        ({"top_k": 0}, "top_k", "greater than or equal to 1"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"seed": "x"}, "seed", "integer"),
        ({"stop": ""}, "stop.0", "at least 1"),
        ({"stop": 5}, "stop", "list"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"stream": True, "stream_options": {"foo": 1}}, "stream_options.foo", "unknown field"),
        ({"stream_options": {"include_usage": True}}, None, "stream_options needs stream"),
        ({"presence_penalty": 3}, "presence_penalty", "less than or equal to 2"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "less than or equal to 100"),
        ({"model": 7}, "model", "string"),
        ({"model": ""}, "model", "at least 1"),
        ({"temprature": 1}, "temprature", "unknown field 'temprature'"),
        ({"new\nline": 1}, "new\nline", "unknown field"),
        ({"n": 2}, "n", "n=2 is not supported; only 1 is"),
        ({"n": True}, "n", "only 1 is"),
        ({"best_of": 3}, "best_of", "not supported"),
        ({"logprobs": 5}, "logprobs", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"tool_choice": "required"}, "tool_choice", 'only "none" or "auto" is'),
        ({"reasoning_effort": "low"}, "reasoning_effort", "not supported"),
    ],
)
@pytest.mark.parametrize(("kind", "base"), [(CompletionRequest, TEXT), (ChatRequest, CHAT)])
def test_wrong_fields_are_named(kind, base, fields, param, says) -> None:
    error = refusal(kind, {**base, **fields})
    assert error.param == param
    assert says in error.message


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        (CompletionRequest, {}, "prompt is missing"),
        (CompletionRequest, {"prompt": ""}, "at least 1"),
        (CompletionRequest, {"prompt": ["a", "b"]}, "string"),
        (CompletionRequest, {"prompt": [1, 2]}, "string"),
        (CompletionRequest, {"prompt": "a", "echo": True}, "echo=True is not supported"),
        (CompletionRequest, {"prompt": "a", "suffix": "b"}, "not supported"),
        (CompletionRequest, {"prompt": "a", "max_completion_tokens": 1}, "unknown field"),
        (ChatRequest, {}, "messages is missing"),
        (ChatRequest, {"messages": []}, "at least 1"),
        (ChatRequest, {"messages": "hi"}, "list"),
        (ChatRequest, {"messages": ["hi"]}, "messages.0"),
        (ChatRequest, {"messages": [{"role": "user"}]}, "messages.0.content is missing"),
        (ChatRequest, {"messages": [{"role": "king", "content": "a"}]}, "messages.0.role"),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "image_url",
        ),
        (ChatRequest, {**CHAT, "max_tokens": 1, "max_completion_tokens": 2}, "disagree"),
        (CompletionRequest, b"", "not valid JSON"),
        (CompletionRequest, b"{", "not valid JSON"),
        (CompletionRequest, b'{"prompt": "\xff"}', "not valid JSON"),
        (CompletionRequest, b'{"prompt": "a", "temperature": NaN}', "NaN is not a JSON number"),
        (CompletionRequest, b'{"prompt": ' + b"[" * 100_000, "nested too deeply"),
        (CompletionRequest, b'{"max_tokens": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (CompletionRequest, rb'{"prompt": "\ud800"}', "unicode"),
        (ChatRequest, rb'{"messages": [{"role": "user", "content": "\ud800"}]}', "unicode"),
        (
            ChatRequest,
            rb'{"messages": [{"role": "user", "content": [{"type": "text", "text": "\udfff"}]}]}',
            "unicode",
        ),
        (CompletionRequest, b'["prompt"]', "must be a JSON object"),
        (CompletionRequest, b"null", "must be a JSON object"),
    ],
)
def test_wrong_bodies(kind: type[Request], body: object, says: str) -> None:
    assert says in refusal(kind, body).message


@pytest.mark.parametrize("name", NEUTRAL)
def test_fields_that_ask_for_nothing_pass(name: str) -> None:
    for value in (None, *NEUTRAL[name]):
        accept(CompletionRequest, {**TEXT, name: value})


def test_nulls_are_absent() -> None:
    body = accept(ChatRequest, {**CHAT, "stop": None, "max_tokens": None, "stream": None})
    assert (body.stop, body.max_tokens, body.stream) == ([], None, False)


def test_one_stop_and_one_prompt_may_stand_alone_or_in_a_list() -> None:
    assert accept(CompletionRequest, {"prompt": ["a"], "stop": "x"}).stop == ["x"]
    assert accept(CompletionRequest, {"prompt": ["a"]}).prompt == "a"  # type: ignore[attr-defined]


def test_limits_stay_within_the_room_left() -> None:
    assert accept(CompletionRequest, TEXT).limit(1000) == 256
    assert accept(CompletionRequest, TEXT).limit(10) == 10
    assert accept(CompletionRequest, {**TEXT, "max_tokens": 20}).limit(10) == 10
    assert accept(ChatRequest, CHAT).limit(1000) == 1000
    assert accept(ChatRequest, {**CHAT, "max_completion_tokens": 7}).limit(1000) == 7


def test_developer_is_the_newer_name_of_system() -> None:
    body = parse(ChatRequest, b'{"messages": [{"role": "developer", "content": "be brief"}]}')
    assert body.template_messages() == [{"role": "system", "content": "be brief"}]


def test_sampling_takes_the_models_defaults_where_nothing_is_asked() -> None:
    default = Sampling(temperature=0.6, top_p=0.95, top_k=20)
    assert accept(CompletionRequest, TEXT).sampling(default, 10) == default
    asked = accept(CompletionRequest, {**TEXT, "temperature": 0, "logit_bias": {"3": -5}})
    sampling = asked.sampling(default, 10)
    assert (sampling.temperature, sampling.top_p, sampling.logit_bias) == (0, 0.95, {3: -5})


@pytest.mark.parametrize("key", ["10", "-1", "x", "", "٣", "9" * 30, "05", "+5", " 5", "00"])
def test_bias_on_no_token_is_refused(key: str) -> None:
    body = accept(CompletionRequest, {**TEXT, "logit_bias": {key: 1}})
    with pytest.raises(ApiError, match=r"not a token id in 0\.\.9"):
        body.sampling(Sampling(), 10)
