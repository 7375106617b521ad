"""One live server for all contract tests: real uvicorn, real batching, a tiny model."""

import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from miractl.server.config import ServerConfig
from miractl.server.process import Process, bind
from tests.server.tiny import TinyEngine

PATIENCE = 60.0


@dataclass
class Running:
    """A server in a thread."""

    url: str
    engine: TinyEngine
    process: Process
    notes: list[str] = field(default_factory=list)

    def post(self, path: str, body: object, **options: object) -> httpx.Response:
        """POST JSON."""
        return httpx.post(self.url + path, json=body, timeout=PATIENCE, **options)

    def complete(self, prompt: str, **fields: object) -> str:
        """The greedy continuation of a prompt."""
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, **fields}
        answer = self.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what must happen soon."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)


@contextmanager
def serving(engine: TinyEngine, config: ServerConfig | None = None) -> Iterator[Running]:
    """Serve `engine` on a free port until the block ends."""
    config = config or ServerConfig(port=0, max_concurrency=4)
    listener = bind(config)
    url = config.url(listener.getsockname()[1])
    notes: list[str] = []
    ready = threading.Event()
    process = Process(config, lambda: engine, notes.append, lambda service: ready.set())
    thread = threading.Thread(target=process.run, args=(listener,))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield Running(url, engine, process, notes)
    finally:
        process.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture
def no_handles() -> Iterator[Callable[[], None]]:
    """From a call of it on, this process can open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def run_out() -> None:
        with open(os.devnull) as next_free:
            resource.setrlimit(resource.RLIMIT_NOFILE, (next_free.fileno(), hard))

    yield run_out
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    with serving(TinyEngine()) as running:
        yield running
