"""The life of a server: bind first, load, answer, drain, end."""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from miractl.errors import MiractlError, UsageError
from miractl.server.config import ServerConfig
from miractl.server.process import LoopErrors, Process, bind
from tests.server.conftest import PATIENCE, Running, wait_until
from tests.server.tiny import TinyEngine

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, time
from miractl.server.config import ServerConfig
from miractl.server.process import Process, bind
from miractl.server.signals import exit_now

def load():
    import torch
    torch.set_num_threads(1)
    from tests.server.tiny import TinyEngine
    if len(sys.argv) < 3:
        return TinyEngine(delay=0.1)

    class Writer(TinyEngine):
        def close(self):
            time.sleep(6)  # longer than a server may take that writes nothing
            print("written", flush=True)

    engine = Writer()
    engine.writes = True
    return engine

config = ServerConfig(port=0, drain_seconds=float(sys.argv[1]))
listener = bind(config)
print(config.url(listener.getsockname()[1]), flush=True)
exit_now(Process(config, load, print, lambda service: None).run(listener))
"""


def test_port_in_use_names_the_port_and_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MiractlError, match=f"port {port} is in use") as caught:
            bind(ServerConfig(port=port))
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("--port ")
    assert caught.value.exit_code == 1


def test_a_port_that_was_just_closed_binds_again() -> None:
    first = bind(ServerConfig(port=0))
    port = first.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        accepted, _ = first.accept()
        accepted.close()  # we close first, so the address lingers
        client.recv(1)
    first.close()
    bind(ServerConfig(port=port)).close()


def test_a_host_that_is_none_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="no such host"):
        bind(ServerConfig(host="no such host", port=0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 65536},
        {"port": -1},
        {"context": 3},
        {"context": 10**11},
        {"max_concurrency": 0},
        {"max_concurrency": 4097},
    ],
)
def test_settings_that_cannot_work(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=str(next(iter(wrong.values())))):
        ServerConfig(**wrong)  # type: ignore[arg-type]


def test_urls_are_for_a_client_on_this_machine() -> None:
    assert ServerConfig().url(8000) == "http://127.0.0.1:8000"
    assert ServerConfig(host="0.0.0.0").url(1) == "http://127.0.0.1:1"
    assert ServerConfig(host="::").url(1) == "http://[::1]:1"
    assert ServerConfig().is_loopback
    assert not ServerConfig(host="0.0.0.0").is_loopback


@pytest.mark.parametrize(
    ("given", "context", "limit"),
    [(None, 128, 2**20), (None, 131_072, 2**22), (None, 10**7, 2**26), (5, 128, 5)],
)
def test_a_body_may_be_as_large_as_the_window_needs(
    given: int | None, context: int, limit: int
) -> None:
    assert ServerConfig(max_body_bytes=given).body_limit(context) == limit


class Gate:
    """A model whose loading ends when told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.open = threading.Event()
        self.engine = TinyEngine()
        self.error = error

    def load(self) -> TinyEngine:
        assert self.open.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return self.engine


def start(gate: Gate, config: ServerConfig) -> tuple[str, Process, threading.Thread, list[object]]:
    listener = bind(config)
    url = config.url(listener.getsockname()[1])
    process = Process(config, gate.load, lambda line: None, lambda service: None)
    results: list[object] = []

    def run() -> None:
        try:
            results.append(process.run(listener))
        except MiractlError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return url, process, thread, results


def unfinished(url: str) -> socket.socket:
    """A client that has sent half of its request."""
    client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), PATIENCE)
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
    return client


def everything(client: socket.socket) -> bytes:
    """What the server sends until it closes."""
    return b"".join(iter(lambda: client.recv(10_000), b""))


def test_a_body_that_does_not_come_is_given_up() -> None:
    url, process, thread, _ = start(Gate(), ServerConfig(port=0, body_seconds=0.01))
    with unfinished(url) as client:
        answer = everything(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body_timeout" in answer
    process.stop()
    thread.join(PATIENCE)


def test_unfinished_requests_are_told_of_the_end(caplog: pytest.LogCaptureFixture) -> None:
    url, process, thread, results = start(Gate(), ServerConfig(port=0, drain_seconds=0.1))
    with unfinished(url) as client:
        assert httpx.get(url + "/live", timeout=PATIENCE).status_code == 200
        process.stop()
        thread.join(PATIENCE)
        assert everything(client).startswith(b"HTTP/1.1 503 ")
    assert results == [0]
    assert caplog.records == []


def test_health_is_503_until_the_model_answers() -> None:
    gate = Gate()
    url, process, thread, results = start(gate, ServerConfig(port=0))
    loading = httpx.get(url + "/health", timeout=PATIENCE)
    assert (loading.status_code, loading.json()) == (503, {"status": "loading"})
    assert httpx.get(url + "/live").status_code == 200
    for path in ("/v1/models", "/v1/status", "/v1/experts"):
        refused = httpx.get(url + path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_loading")
    asked = httpx.post(url + "/v1/completions", json={"prompt": "a"})
    assert (asked.status_code, asked.headers["retry-after"]) == (503, "1")
    assert "miractl_ready 0.0" in httpx.get(url + "/metrics").text
    gate.open.set()
    wait_until(lambda: httpx.get(url + "/health").status_code == 200, "the model")
    assert gate.engine.tokens > 0  # it has really answered
    assert httpx.get(url + "/v1/models").status_code == 200
    wait_until(lambda: gc.get_freeze_count() > 0, "what stays to be left alone")
    process.stop()
    thread.join(PATIENCE)
    assert results == [0]
    assert gc.get_freeze_count() == 0
    wait_until(lambda: gate.engine.closed, "the engine's end")


def test_health_says_why_requests_fail(server: Running) -> None:
    server.engine.broken = "experts.bin was written to since it was opened"
    try:
        told = httpx.get(server.url + "/health", timeout=PATIENCE)
    finally:
        server.engine.broken = None
    assert (told.status_code, told.json()) == (
        503,
        {"status": "unhealthy", "reason": "experts.bin was written to since it was opened"},
    )
    assert httpx.get(server.url + "/health", timeout=PATIENCE).status_code == 200


def test_a_server_out_of_handles_says_so_in_a_line_and_not_a_thousand(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now, loop = [100.0], asyncio.new_event_loop()
    told = LoopErrors(lambda: now[0])
    full = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Full")}
    for _ in range(1000):
        told(loop, full)
    now[0] += 11.0
    told(loop, full)
    assert caplog.messages == ["socket.accept() out of system resource: Full"] * 2
    # asyncio's own, a second later, when the server has closed its socket meanwhile.
    told(loop, {"message": "gone", "exception": ValueError("Invalid file descriptor: -1")})
    assert len(caplog.records) == 2
    told(loop, {"message": "a bug", "exception": ValueError("of ours")})
    assert caplog.records[-1].name == "asyncio"
    loop.close()


def test_a_server_with_too_few_handles_does_not_begin(no_handles: Callable[[], None]) -> None:
    config = ServerConfig(port=0)
    with bind(config) as listener:
        process = Process(config, Gate().load, lambda line: None, lambda service: None)
        no_handles()
        with pytest.raises(MiractlError, match="more file handles: Too many open files") as caught:
            process.run(listener)
    assert caught.value.hint == "ulimit -n 1024"


@pytest.mark.parametrize("error", [None, MiractlError("it does not load")])
def test_a_model_that_comes_after_the_end_is_nobodys(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(error)
    _, process, thread, results = start(gate, ServerConfig(port=0))

    def close() -> None:
        gate.open.set()
        loading = "_load_into"
        wait_until(lambda: all(loading not in t.name for t in threading.enumerate()), "the loader")

    process.service.close = close
    process.stop()
    thread.join(PATIENCE)
    assert results == [0]
    assert caplog.records == []


def test_a_model_that_does_not_load_ends_the_server() -> None:
    gate = Gate(MiractlError("model-00002.safetensors is a Git LFS pointer"))
    _, _, thread, results = start(gate, ServerConfig(port=0))
    gate.open.set()
    thread.join(PATIENCE)
    assert [str(result) for result in results] == ["model-00002.safetensors is a Git LFS pointer"]


def test_a_window_beyond_the_model_ends_the_server() -> None:
    gate = Gate()
    _, _, thread, results = start(gate, ServerConfig(port=0, context=100_000))
    gate.open.set()
    thread.join(PATIENCE)
    assert "100,000 tokens" in str(results[0])
    assert "128" in str(results[0])


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, each token 0.1 s; the parameter is its drain time."""
    command = [sys.executable, "-c", SCRIPT, str(request.param)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            yield process, url
        finally:
            process.kill()


def open_stream_and_signal(
    process: subprocess.Popen[str], url: str, *signals: signal.Signals
) -> str:
    """What a client of an endless stream gets when the server is told to stop."""
    wait_until(lambda: httpx.get(url + "/health", timeout=PATIENCE).status_code == 200, "the model")
    body = {"prompt": "the", "max_tokens": 120, "temperature": 0, "stream": True}
    got = ""
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=PATIENCE) as answer:
        for number, text in enumerate(answer.iter_text()):
            got += text
            if number < len(signals):
                process.send_signal(signals[number])
    return got


@pytest.mark.slow
@pytest.mark.parametrize("child", [0.5], indirect=True)
def test_sigterm_ends_open_streams_and_the_process(child) -> None:
    process, url = child
    got = open_stream_and_signal(process, url, signal.SIGTERM)
    assert "the server is shutting down" in got
    assert got.endswith("data: [DONE]\n\n")
    assert process.wait(timeout=5) == 0


@pytest.mark.slow
def test_what_was_recorded_is_written_before_the_end() -> None:
    command = [sys.executable, "-c", SCRIPT, "0", "writer"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        health = url + "/health"
        wait_until(lambda: httpx.get(health, timeout=PATIENCE).status_code == 200, "the model")
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read().endswith("written\n")
        assert process.wait(timeout=30) == 0


@pytest.mark.slow
@pytest.mark.parametrize("child", [60], indirect=True)
def test_a_second_signal_ends_at_once(child) -> None:
    process, url = child
    with pytest.raises(httpx.RemoteProtocolError):
        open_stream_and_signal(process, url, signal.SIGINT, signal.SIGINT)
    assert process.wait(timeout=5) == 130


@pytest.mark.parametrize("child", [0.5], indirect=True)
def test_a_signal_while_loading_ends_the_process(child) -> None:
    process, url = child
    assert httpx.get(url + "/health", timeout=PATIENCE).json() == {"status": "loading"}
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=5) == 130
