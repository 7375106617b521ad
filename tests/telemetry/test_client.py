"""Every failure of a server is one line that says what to do."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from miractl.errors import MiractlError, UsageError
from miractl.telemetry.client import Client, ServerLoadingError, parse_url
from tests.telemetry.snapshots import BASE, expert_table

Serve = Callable[[dict[str, tuple[int, Any]]], str]


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://box:8000/v1/", "http://box:8000"),  # what OpenAI clients are given
        ("https://host/behind/proxy", "https://host/behind/proxy"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_addresses(text: str, url: str) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:8000",
        "localhost",
        "file:///etc/passwd",
        "http://",
        "http://host:port",
        "http://host:99999",
        "http://host:0",
        "http://[::1",
        "http://host/?a=b",
        "http://user:secret@host",
        "http://ho st",
        "http://host\n/x",
    ],
)
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(text)
    assert caught.value.hint == "write it like http://127.0.0.1:8000"
    assert "\n" not in caught.value.message


def test_facts_arrive_whole(serve: Serve) -> None:
    table = expert_table()
    url = serve(
        {
            "/v1/status": (200, BASE.to_json()),
            "/v1/experts": (200, table.to_json()),
            "/health": (200, {"status": "ok"}),
        }
    )
    client = Client(url)
    assert client.status() == BASE
    assert client.experts() == table
    assert client.health() == "ok"


def test_loading(serve: Serve) -> None:
    error = {"message": "the model is still loading", "code": "model_loading"}
    url = serve({"/health": (503, {"status": "loading"}), "/v1/status": (503, {"error": error})})
    for ask in (Client(url).health, Client(url).status):
        with pytest.raises(ServerLoadingError, match="is still loading its model"):
            ask()


STATUS = BASE.to_json()


@pytest.mark.parametrize(
    ("code", "answer", "message"),
    [
        (404, {"detail": "Not Found"}, "/v1/status answered 404"),
        (500, b"oops", "/v1/status answered 500"),
        (503, {"status": "the worker died"}, "/v1/status answered 503"),
        (503, [1], "/v1/status answered 503"),
        (503, {"error": "x"}, "/v1/status answered 503"),
        (503, {"error": {"message": "shutting\ndown"}}, "answered 503: shutting down"),
        (200, b"<html>", "answered no JSON"),
        (200, b"\xff\xfe", "answered no JSON"),
        (200, [], "answered JSON of another service"),
        (200, {}, "schema is None"),
        (200, {"schema": "miractl.status/9"}, "schema is 'miractl.status/9'"),
        (200, {"schema": "miractl.status/1"}, "lacks the field 'timestamp'"),
        (200, {**STATUS, "cache": {}}, "lacks the field 'pools'"),
        (200, {**STATUS, "cache": 7}, "mapping"),
        (200, {**STATUS, "work": {**STATUS["work"], "new": 1}}, "unexpected keyword"),
    ],
)
def test_another_service(serve: Serve, code: int, answer: Any, message: str) -> None:
    client = Client(serve({"/v1/status": (code, answer)}))
    with pytest.raises(MiractlError) as caught:
        client.status()
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint == "is it a miractl server, of this version?"


def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(MiractlError) as caught:
            Client(url).status()
    assert caught.value.message == f"no miractl server at {url}"
    assert caught.value.hint == "start one with: miractl serve"


def test_a_silent_server_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.05)
        with pytest.raises(MiractlError, match=r"did not answer within 0\.05 s"):
            client.status()


def test_not_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(MiractlError, match="does not speak HTTP"):
            Client(f"http://127.0.0.1:{other.getsockname()[1]}").status()


def test_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: Any, **kwargs: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(MiractlError, match="no machine is called 'nowhere'"):
        Client("http://nowhere:8000").status()


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_a_proxy_is_not_asked_for_this_machine(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    assert Client(serve({"/health": (200, {"status": "ok"})})).health() == "ok"
