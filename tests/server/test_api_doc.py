"""docs/api.md names every path, field, code and limit there is."""

import re
from pathlib import Path

import pytest
from starlette.routing import Route

from miractl.server.app import Application
from miractl.server.config import ServerConfig
from miractl.server.prompts import TEMPLATE_SECONDS
from miractl.server.requests import (
    COMPLETION_TOKENS,
    MAX_TOKENS,
    NEUTRAL,
    ChatRequest,
    CompletionRequest,
)
from miractl.server.service import Service

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
FIELDS = {*ChatRequest.model_fields, *CompletionRequest.model_fields}


def section(title: str) -> str:
    return DOC.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[str]:
    """The first cells of the tables of a section."""
    cells = re.findall(r"^\| ([^|]*) \|", section(title), re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_every_path_is_told() -> None:
    app = Application(Service(ServerConfig())).asgi._app
    paths = {route.path.replace(":path", "") for route in app.routes if isinstance(route, Route)}
    assert paths == set(rows("Endpoints"))


def test_every_field_is_told() -> None:
    assert set(rows("Fields of a request")) == FIELDS


@pytest.mark.parametrize("name", NEUTRAL)
def test_every_field_that_is_not_offered_is_told(name: str) -> None:
    assert f"`{name}`" in section("What is refused")


def test_every_code_is_told() -> None:
    source = "".join(path.read_text() for path in (ROOT / "miractl" / "server").glob("*.py"))
    codes = set(re.findall(r'code="([a-z_]+)"', source)) | {"not_found", "method_not_allowed"}
    assert codes == set(re.findall(r"`([a-z_]+)`", section("Errors")))


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Limits", f"| {ServerConfig().body_seconds:g} s |"),
        ("Limits", f"`--max-concurrency`, {ServerConfig().max_concurrency}"),
        ("Limits", f"| computing in a chat template | {TEMPLATE_SECONDS:g} s |"),
        ("Fields of a request", f"1..{MAX_TOKENS}"),
        ("Fields of a request", f"{COMPLETION_TOKENS} in completions"),
        ("The end of the server", f"go on for {ServerConfig().drain_seconds:g} s"),
    ],
)
def test_numbers_are_those_in_force(title: str, words: str) -> None:
    assert words in section(title)
