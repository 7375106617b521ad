"""Many requests at once: none changes, harms or outlives another."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from miractl.plan import kv, needs
from miractl.server.config import ServerConfig
from miractl.server.prompts import BoundedTokenizer
from tests.server.conftest import PATIENCE, Running, serving, wait_until
from tests.server.tiny import TinyEngine, tiny_model, tiny_tokenizer

TEXT = "/v1/completions"
ENDLESS = {"prompt": "the", "max_tokens": 100, "temperature": 0}
PROMPTS = ["the cat", "to be or", "def main", "the mat on the", "sat", "or not to", "return", "on"]


def generate_greedily(engine: TinyEngine, prompt: str, count: int) -> str:
    """What the model itself says without any server."""
    ids = engine.tokenizer(prompt, return_tensors="pt")["input_ids"]
    out = engine.model.generate(ids, max_new_tokens=count, do_sample=False, pad_token_id=0)
    return engine.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def test_greedy_equals_the_model_alone_and_in_parallel(server: Running) -> None:
    alone = [server.complete(prompt, max_tokens=24) for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        together = list(pool.map(lambda p: server.complete(p, max_tokens=24), PROMPTS))
    assert together == alone
    twin = TinyEngine(tiny_model(len(server.engine.tokenizer), eos=None))
    assert alone == [generate_greedily(twin, prompt, 24) for prompt in PROMPTS]


def test_sampling_settings_are_not_shared_in_a_batch(server: Running) -> None:
    greedy = server.complete("the cat", max_tokens=24)
    seeded = {"prompt": "to be", "max_tokens": 24, "temperature": 1.5, "seed": 5}
    alone = server.post(TEXT, seeded).json()["choices"][0]["text"]
    with ThreadPoolExecutor(6) as pool:
        mixed = [
            (
                pool.submit(server.complete, "the cat", max_tokens=24),
                pool.submit(server.post, TEXT, seeded),
            )
            for _ in range(3)
        ]
        for cold, hot in mixed:
            assert cold.result() == greedy
            assert hot.result().json()["choices"][0]["text"] == alone


@pytest.fixture(scope="module")
def slow() -> object:
    """Two places, each step takes 50 ms."""
    with serving(TinyEngine(delay=0.05), ServerConfig(port=0, max_concurrency=2)) as running:
        yield running


def test_closing_a_stream_ends_its_generation(slow: Running) -> None:
    with httpx.stream("POST", slow.url + TEXT, json={**ENDLESS, "stream": True}) as answer:
        next(answer.iter_raw())
    assert_given_up(slow)


def test_going_away_before_the_answer_ends_its_generation(slow: Running) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(slow.url + TEXT, json=ENDLESS, timeout=0.4)
    assert_given_up(slow)


def assert_given_up(running: Running) -> None:
    wait_until(lambda: not running.process.service.open_answers, "the answer to be given up")
    steps = running.engine.steps
    running.complete("the", max_tokens=1)
    assert running.engine.steps - steps <= 3  # its own, and one that was already under way


def test_too_many_waiting_requests_get_429(slow: Running) -> None:
    config = slow.process.service.config
    limit = config.max_concurrency + config.max_waiting
    body = {"prompt": "the", "max_tokens": 5, "temperature": 0}
    with ThreadPoolExecutor(limit + 4) as pool:
        answers = list(pool.map(lambda _: slow.post(TEXT, body), range(limit + 4)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 4
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert refused[0].json()["error"]["type"] == "rate_limit_error"
    assert len({a.json()["choices"][0]["text"] for a in answers if a.status_code == 200}) == 1


def test_prompts_in_the_making_take_places_and_hold_up_nobody_who_looks(
    slow: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, tokenise = threading.Event(), BoundedTokenizer.__call__

    def wait(self: BoundedTokenizer, text: str, **options: object) -> object:
        assert gate.wait(PATIENCE)
        return tokenise(self, text, **options)

    monkeypatch.setattr(BoundedTokenizer, "__call__", wait)
    body = {"prompt": "the", "max_tokens": 2}
    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(slow.post, TEXT, body) for _ in range(10)]
        wait_until(lambda: slow.process.service.open_answers == 10, "all places to be taken")
        refused = slow.post(TEXT, body)
        looks = [httpx.get(slow.url + path) for path in ("/metrics", "/v1/status", "/v1/experts")]
        gate.set()
        assert [answer.result().status_code for answer in asked] == [200] * 10
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert [answer.status_code for answer in looks] == [200] * 3


def test_a_step_that_fails_is_an_error_and_the_next_request_works(
    slow: Running, caplog: pytest.LogCaptureFixture
) -> None:
    before = slow.complete("the cat")
    slow.engine.fail_on = slow.engine.tokenizer("x")["input_ids"][0]
    try:
        answer = slow.post(TEXT, {"prompt": "x", "max_tokens": 3})
        streamed = slow.post(TEXT, {"prompt": "x", "max_tokens": 3, "stream": True})
    finally:
        slow.engine.fail_on = None
    assert answer.status_code == 500
    assert "expert 3 of layer 1 cannot be read" in answer.json()["error"]["message"]
    events = [line.removeprefix("data: ") for line in streamed.text.split("\n\n") if line]
    assert "cannot be read" in json.loads(events[-2])["error"]["message"]
    assert events[-1] == "[DONE]"
    assert slow.complete("the cat") == before
    assert httpx.get(slow.url + "/health").status_code == 200
    assert "a new one runs" in caplog.text


class Unbatchable(TinyEngine):
    """A model that continuous batching cannot run."""

    def __init__(self) -> None:
        super().__init__()

        def refuse(**_: object) -> None:
            raise ValueError("layer type linear_attention is not supported")

        self.model.init_continuous_batching = refuse


def test_families_that_cannot_be_batched_are_served_one_after_another(server: Running) -> None:
    with serving(Unbatchable()) as running:
        assert len(running.notes) == 1
        assert "linear_attention" in running.notes[0]
        assert "one after another" in running.notes[0]
        assert not running.engine.losses.are_taken  # a read that fails is an error there
        with ThreadPoolExecutor(4) as pool:
            texts = list(pool.map(lambda p: running.complete(p, max_tokens=24), PROMPTS[:4]))
        assert texts == [server.complete(prompt, max_tokens=24) for prompt in PROMPTS[:4]]
        seeded = {"prompt": "to be", "max_tokens": 9, "temperature": 1.5, "seed": 5}
        assert (
            running.post(TEXT, seeded).json()["choices"]
            == server.post(TEXT, seeded).json()["choices"]
        )


def test_end_token_stops_and_is_not_shown() -> None:
    tokenizer = tiny_tokenizer()
    plain = TinyEngine()
    text = generate_greedily(plain, "the cat", 8)
    ids = plain.model.generate(
        **tokenizer("the cat", return_tensors="pt"),
        max_new_tokens=8,
        do_sample=False,
        pad_token_id=0,
    )[0].tolist()
    end = ids[-3]
    with serving(TinyEngine(tiny_model(len(tokenizer), eos=end), tokenizer)) as running:
        answer = running.post(TEXT, {"prompt": "the cat", "temperature": 0}).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert text.startswith(answer["choices"][0]["text"])
    assert len(answer["choices"][0]["text"]) < len(text)


def test_model_without_chat_template_answers_text_only() -> None:
    tokenizer = tiny_tokenizer(chat_template=None)
    with serving(TinyEngine(tokenizer=tokenizer)) as running:
        chat = running.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}
        )
        assert chat.status_code == 400
        assert chat.json()["error"]["code"] == "no_chat_template"
        assert running.complete("the cat")


def test_short_steps_and_a_full_cache_change_no_answer(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [f"{prompt} " * 12 for prompt in PROMPTS[:6]]
    roomy = [server.complete(prompt, max_tokens=60) for prompt in prompts]
    monkeypatch.setattr(needs, "CHUNK", 16)  # prompts take several steps
    monkeypatch.setattr(kv, "PAGE", 16)
    # One window and a little more, for four requests.
    config = ServerConfig(port=0, max_concurrency=4, kv_memory=1)
    with serving(TinyEngine(), config) as tight, ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(lambda p: tight.complete(p, max_tokens=60), prompts)) == roomy
