"""What the user set: files and variables that parse or do not, ports that are free or not."""

import socket
from pathlib import Path

import pytest

from miractl import paths
from miractl.probe import configuration, port


def configure(text: str) -> Path:
    file = paths.config_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_nothing_is_set() -> None:
    found = configuration.read()
    assert (found.file, found.profile, found.origin) == (None, "default", "default")
    assert found.error is None


def test_a_file_that_chooses_a_profile() -> None:
    file = configure("profile: a10\ncache_threshold: 0.4\n")
    found = configuration.read()
    assert (found.file, found.profile) == (str(file), "a10")
    assert found.origin == f"file {file}:1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cache_treshold: 0.4\n", ":1: unknown key 'cache_treshold'; did you mean"),
        ("port: 8000\ncache_threshold: 4\n", ":2: cache_threshold: got 4 but expected"),
        ("profile: a11\n", "no profile 'a11'; did you mean 'a10'"),
        ("a: [\n", "not valid YAML"),
    ],
)
def test_a_mistake_is_an_answer(text: str, words: str) -> None:
    configure(text)
    assert words in (configuration.read().error or "")


def test_a_variable_that_does_not_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRACTL_CACHE_THRESHOLD", "much")
    assert "MIRACTL_CACHE_THRESHOLD: got 'much'" in (configuration.read().error or "")


def test_a_port_that_is_taken_and_then_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        found = port.ask(taken)
        assert found.error == "Address already in use"
        assert found.free is None or found.free > taken
    assert port.ask(taken).error is None
