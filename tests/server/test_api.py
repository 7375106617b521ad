"""The HTTP contract, as clients see it: httpx for the words, the openai package for the meaning."""

import json

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import Running
from tests.server.tiny import CONTEXT, tiny_tokenizer

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0)


def tokens(text: str) -> int:
    return len(tiny_tokenizer()(text)["input_ids"])


def error_of(answer: httpx.Response) -> dict[str, object]:
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    return error


def streamed(server: Running, path: str, body: dict[str, object]) -> list[dict[str, object]]:
    answer = server.post(path, {**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/health", {"status": "ok"}, 200),
        ("/ready", {"status": "ok"}, 200),
        ("/live", {"status": "alive"}, 200),
    ],
)
def test_probes(server: Running, path: str, body: object, status: int) -> None:
    answer = httpx.get(server.url + path)
    assert (answer.status_code, answer.json()) == (status, body)


def test_models_lists_the_served_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_chat_answers_with_usage_and_reason(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_completion_tokens=6, temperature=0
    )
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    assert answer.usage.prompt_tokens == tokens("<|user|>the cat\n<|assistant|>")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 6


def test_completion_answers_with_usage_and_reason(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="the cat", max_tokens=6, temperature=0)
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (tokens("the cat"), 6)


def test_chat_streams_the_same_text(client: openai.OpenAI) -> None:
    ask = {"model": "tiny", "messages": HELLO, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**ask)
    chunks = list(
        client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_completion_streams_the_same_text(server: Running) -> None:
    body = {"prompt": "to be", "max_tokens": 30, "temperature": 0}
    chunks = streamed(server, TEXT, body)
    assert "".join(c["choices"][0]["text"] for c in chunks) == server.complete(
        "to be", max_tokens=30
    )
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert all("usage" not in chunk for chunk in chunks)


def test_stop_string_ends_the_text_before_it(server: Running) -> None:
    full = server.complete("the mat", max_tokens=30)
    stop = full[5:9]
    assert tokens(stop) > 1  # it spans tokens
    body = {"prompt": "the mat", "max_tokens": 30, "temperature": 0, "stop": ["never", stop]}
    whole = server.post(TEXT, body).json()
    assert whole["choices"][0]["text"] == full[: full.index(stop)]
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] < 30
    chunks = streamed(server, TEXT, body)
    assert "".join(c["choices"][0]["text"] for c in chunks) == full[: full.index(stop)]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_held_text_is_not_lost_when_the_stop_never_comes(server: Running) -> None:
    full = server.complete("the mat", max_tokens=10)
    assert server.complete("the mat", max_tokens=10, stop=f"{full[-2:]}never") == full


def test_seed_gives_the_same_text_and_another_seed_another(server: Running) -> None:
    body = {"prompt": "the cat", "max_tokens": 24, "temperature": 1.0, "top_p": 0.9, "top_k": 50}

    def sample(seed: int) -> str:
        return server.post(TEXT, {**body, "seed": seed}).json()["choices"][0]["text"]

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_bias_forces_a_token(server: Running) -> None:
    token = tiny_tokenizer()("a")["input_ids"][0]
    assert server.complete("the", max_tokens=3, logit_bias={str(token): 100}) == "aaa"


def test_frequency_penalty_ends_repetition(server: Running) -> None:
    a, b = (tiny_tokenizer()(letter)["input_ids"][0] for letter in "ab")
    bias = {str(a): 100, str(b): 99}
    text = server.complete("the", max_tokens=4, logit_bias=bias, frequency_penalty=2)
    assert sorted(text[:2]) == ["a", "b"]


def test_answer_is_clamped_to_the_window(server: Running) -> None:
    answer = server.post(
        TEXT, {"prompt": "to be", "max_tokens": 9_999_999, "temperature": 0}
    ).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == CONTEXT


def test_prompt_beyond_the_window_names_both_numbers(server: Running) -> None:
    long = "xq " * CONTEXT
    answer = server.post(TEXT, {"prompt": long})
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert f"{tokens(long)} tokens" in str(error["message"])
    assert f"{CONTEXT} tokens" in str(error["message"])


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        (TEXT, {"prompt": "a", "model": "gpt-9"}, 404, "model_not_found", "model"),
        (CHAT, {"messages": HELLO, "model": "gpt-9"}, 404, "model_not_found", "model"),
        (TEXT, {"prompt": "a", "max_tokens": -1}, 400, "invalid_value", "max_tokens"),
        (CHAT, {"messages": []}, 400, "invalid_value", "messages"),
        (CHAT, {"messages": HELLO, "n": 2}, 400, "unsupported_parameter", "n"),
        (TEXT, {"prompt": "a", "logit_bias": {"300000": 1}}, 400, "invalid_value", "logit_bias"),
    ],
)
def test_wrong_requests_get_an_error_object(
    server: Running, path: str, body: object, status: int, code: str, param: str
) -> None:
    answer = server.post(path, body)
    error = error_of(answer)
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert error["type"] == "invalid_request_error"


def test_openai_client_understands_the_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-9", prompt="a")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tiny", prompt="a", temperature=3)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("GET", TEXT, 405), ("POST", "/load_model", 404)],
)
def test_other_paths_and_methods(server: Running, method: str, path: str, status: int) -> None:
    answer = httpx.request(method, server.url + path)
    error_of(answer)
    assert answer.status_code == status
    assert "x-request-id" in answer.headers


def test_body_over_the_limit_is_413(server: Running) -> None:
    body = b'{"prompt": "' + b"a" * 4 * 2**20 + b'"}'
    answer = httpx.post(server.url + TEXT, content=body, timeout=30)
    assert (answer.status_code, error_of(answer)["code"]) == (413, "body_too_large")


def test_one_model(server: Running, client: openai.OpenAI) -> None:
    assert client.models.retrieve("tiny").id == "tiny"
    answer = httpx.get(server.url + "/v1/models/org/other")
    assert (answer.status_code, error_of(answer)["code"]) == (404, "model_not_found")


def test_what_was_sent_is_not_echoed_whole(server: Running) -> None:
    long = "x" * 30_000
    answers = [
        httpx.get(f"{server.url}/{long}"),
        httpx.get(f"{server.url}/v1/models/{long}"),
        server.post(TEXT, {"prompt": "a", "model": long}),
        server.post(TEXT, {"prompt": "a", long: 1}),
        server.post(TEXT, {"prompt": "a", "logit_bias": {long: "x"}}),
    ]
    assert [answer.status_code for answer in answers] == [404, 404, 404, 400, 400]
    assert all("x..." in str(error_of(answer)["message"]) for answer in answers)
    assert max(len(answer.text) for answer in answers) < 1000


def test_half_a_surrogate_pair_is_refused_everywhere(server: Running) -> None:
    for body in (rb'{"prompt": "a", "\ud800": 1}', rb'{"prompt": "a", "model": "\ud800"}'):
        answer = httpx.post(server.url + TEXT, content=body, timeout=30)
        assert answer.status_code == 400
        error_of(answer)


def test_a_prompt_far_beyond_the_window_is_told_without_tokenising(server: Running) -> None:
    answer = server.post(CHAT, {"messages": [{"role": "user", "content": "a" * 900_000}]})
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "at least" in str(error["message"])


def test_request_id_is_echoed_and_may_repeat(server: Running) -> None:
    headers = {"x-request-id": "mine"}
    texts = {
        server.post(TEXT, {"prompt": p, "temperature": 0, "max_tokens": 4}, headers=headers).text
        for p in ("the cat", "to be")
    }
    assert len(texts) == 2
    assert httpx.get(server.url + "/health", headers=headers).headers["x-request-id"] == "mine"
    assert httpx.get(server.url + "/health").headers["x-request-id"]


def test_metrics_parse_strictly(server: Running) -> None:
    answer = httpx.get(server.url + "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["miractl_ready"] == 1
    lookups = samples["miractl_expert_lookups_total"]
    assert samples["miractl_expert_hits_total"] + samples["miractl_expert_misses_total"] == lookups


def test_status_is_the_snapshot(server: Running) -> None:
    body = httpx.get(server.url + "/v1/status").json()
    assert body["schema"] == "miractl.status/1"
    assert body["model"]["id"] == "tiny"


def test_experts_are_all_there_and_sorted(server: Running) -> None:
    body = httpx.get(server.url + "/v1/experts").json()
    assert (body["schema"], body["model"]) == ("miractl.experts/1", "tiny")
    places = [(row["layer"], row["expert"]) for row in body["experts"]]
    assert places == [(layer, expert) for layer in (0, 1) for expert in range(4)]


def test_the_timeline_has_the_last_steps(server):
    answer = httpx.get(f"{server.url}/v1/timeline?last=1")
    assert answer.status_code == 200
    assert answer.json()["schema"] == "miractl.timeline/1"
    assert len(answer.json()["steps"]) == 1
    for wrong in ("0", "-1", "x", "", "1e3"):
        refused = httpx.get(f"{server.url}/v1/timeline", params={"last": wrong})
        assert refused.status_code == 400, wrong
        assert refused.json()["error"]["param"] == "last"
