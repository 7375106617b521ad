"""Fixtures that all tests share. No test reads or writes the real user's folders."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from miractl.native import available, why_not

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/ instead of comparing"
    )


@pytest.fixture(autouse=True)
def _own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of its own, no settings from outside, a terminal of 80 columns."""
    for variable, folder in (
        ("XDG_CONFIG_HOME", "config"),
        ("XDG_STATE_HOME", "state"),
        ("XDG_CACHE_HOME", "cache"),
    ):
        monkeypatch.setenv(variable, str(tmp_path / ".xdg" / folder))
    for variable in [name for name in os.environ if name.startswith("MIRACTL_")]:
        if variable != "MIRACTL_REQUIRE_NATIVE":
            monkeypatch.delenv(variable)
    # Set and deleted, so that what a command sets itself is undone after the test.
    for variable in ("NO_COLOR", "MIRACTL_DEBUG", "LC_ALL"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """What a command sets up for its log does not reach the next test."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("help/serve.txt", text)`: compare with a file, or write it with --update-golden."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no {path}: run pytest --update-golden and read the difference"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def miractl() -> Callable[..., Result]:
    """`miractl("profiles", "list")`: run the command line in this process."""
    from miractl.cli.main import cli

    def run(*args: str) -> Result:
        return CliRunner().invoke(cli, args, prog_name="miractl")

    return run


@pytest.fixture(scope="session")
def kernels() -> None:
    """Skip without the library, unless it is required."""
    if available():
        return
    if os.environ.get("MIRACTL_REQUIRE_NATIVE"):
        pytest.fail(str(why_not()))
    pytest.skip(str(why_not()))
