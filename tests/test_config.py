"""Settings: which layer wins, and one line that names the layer of a bad value."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from miractl import paths
from miractl.config import (
    SETTINGS,
    Setting,
    read_config,
    resolve_parameters,
    resolve_runtime,
    resolve_settings,
)
from miractl.errors import UsageError
from miractl.parameters import PARAMETERS, RUNTIME
from miractl.profiles import Profile

PROFILE = Profile("mine", "", {"cache_threshold": 0.1})


def write_config(text: str) -> Path:
    path = paths.config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("layers", "value", "origin"),
    [
        ("", 0.30, "default"),
        ("profile", 0.1, "profile mine"),
        ("profile file", 0.2, "file {path}:2"),
        ("profile file env", 0.4, "env MIRACTL_CACHE_THRESHOLD"),
        ("profile file env option", 0.5, "option"),
        ("env", 0.4, "env MIRACTL_CACHE_THRESHOLD"),
        ("option", 0.5, "option"),
        ("profile empty-env", 0.1, "profile mine"),
    ],
)
def test_precedence(
    layers: str, value: float, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = set(layers.split())
    path = write_config("url: http://x:1\ncache_threshold: 0.2\n") if "file" in on else None
    if "env" in on or "empty-env" in on:
        monkeypatch.setenv("MIRACTL_CACHE_THRESHOLD", "0.4" if "env" in on else "")
    profile = PROFILE if "profile" in on else Profile("bare", "", {})
    options = {"cache_threshold": 0.5} if "option" in on else {}
    settings = resolve_parameters(profile, options)
    assert settings["cache_threshold"] == Setting(value, origin.format(path=path))
    assert list(settings) == list(PARAMETERS)


@pytest.mark.parametrize("name", [*PARAMETERS, *RUNTIME, *SETTINGS])
def test_every_setting_can_come_from_the_environment_and_the_file(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    parameter = (PARAMETERS | RUNTIME | SETTINGS)[name]
    value = {"float": 0.5, "int": 200, "bool": False, "str": "words"}[parameter.kind]
    value = parameter.choices[-1] if parameter.choices else 2 if parameter.high == 8 else value

    def resolved() -> Setting:
        runtime = resolve_runtime(PROFILE, {})
        return (resolve_settings({}) | runtime | resolve_parameters(PROFILE, {}))[name]

    path = write_config(f"{name}: {json.dumps(value)}\n")
    assert resolved() == Setting(value, f"file {path}:1")
    monkeypatch.setenv(parameter.env, str(value))
    assert resolved() == Setting(value, f"env {parameter.env}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cache_threshold: 2\n", ":1: cache_threshold: got 2 but expected a number from 0 to 1"),
        ("url: x\nprot: 1\n", ":2: unknown key 'prot'; did you mean 'port'"),
        ("port: abc\n", ":1: port: got 'abc' but expected a whole number from 0 to 65535"),
        ("log_level: inf\n", "did you mean 'info'"),
        ("", "empty"),
        ("{", "not valid YAML"),
    ],
)
def test_bad_file(text: str, words: str) -> None:
    path = write_config(text)
    with pytest.raises(UsageError) as caught:
        resolve_parameters(PROFILE, {})
    assert caught.value.message.startswith(str(path))
    assert words in caught.value.message


def test_file_is_optional_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_config() == {}
    monkeypatch.setenv("MIRACTL_CONFIG", "/nowhere/config.yaml")
    with pytest.raises(UsageError, match=r"/nowhere/config\.yaml: No such"):
        read_config()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cache_treshold": 1}, "did you mean 'cache_threshold'"),
        ({"cache_threshold": "x"}, "cache_threshold: got 'x' but expected"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve_parameters(PROFILE, options)


def show(miractl: Callable[..., Result], *args: str) -> dict[str, dict[str, Any]]:
    result = miractl("config", "show", "--json", *args)
    assert result.exit_code == 0, result.stderr
    settings: dict[str, dict[str, Any]] = json.loads(result.stdout)["settings"]
    return settings


def test_show_takes_the_options_of_serve(miractl: Callable[..., Result]) -> None:
    given = ("--profile", "a10", "--cache-threshold", "0.4", "--no-prefetch", "--set")
    settings = show(miractl, *given, "prediction-mode=markov")
    assert settings["profile"] == {"value": "a10", "origin": "option"}
    assert settings["cache_threshold"] == {"value": 0.4, "origin": "option"}
    assert settings["prefetch"] == {"value": False, "origin": "option"}
    assert settings["prediction_mode"] == {"value": "markov", "origin": "option"}
    assert settings["max_staged_experts"] == {"value": 3, "origin": "profile a10"}
    assert settings["prediction_horizon"] == {"value": 3, "origin": "default"}


def test_show_takes_the_profile_from_any_layer(
    miractl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config("profile: l40s\n")
    settings = show(miractl)
    assert settings["profile"] == {"value": "l40s", "origin": f"file {path}:1"}
    assert settings["cache_threshold"]["origin"] == "profile l40s"
    monkeypatch.setenv("MIRACTL_PROFILE", "a100")
    assert show(miractl)["cache_threshold"]["origin"] == "profile a100"


def test_show_has_what_sizes_the_service(
    miractl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config("max_concurrency: 3\n")
    monkeypatch.setenv("MIRACTL_CONTEXT", "4096")
    settings = show(miractl, "--kv-memory", "2GiB", "--port", "0")
    assert settings["max_concurrency"] == {"value": 3, "origin": f"file {path}:1"}
    assert settings["context"] == {"value": 4096, "origin": "env MIRACTL_CONTEXT"}
    assert settings["kv_memory"] == {"value": "2GiB", "origin": "option"}
    assert settings["port"] == {"value": 0, "origin": "option"}
    assert settings["host"]["origin"] == settings["device"]["origin"] == "default"


def test_show_as_text(miractl: Callable[..., Result]) -> None:
    plain = miractl("config", "show").stdout.splitlines()
    origin = miractl("config", "show", "--origin").stdout.splitlines()
    assert plain[0].split() == ["SETTING", "VALUE"]
    assert origin[0].split() == ["SETTING", "VALUE", "ORIGIN"]
    assert len(plain) == len(origin) == 1 + len(SETTINGS) + len(RUNTIME) + len(PARAMETERS)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ["--cache-threshold", "4"],
            "--cache-threshold: got '4' but expected a number from 0 to 1",
        ),
        (["--set", "prefetch"], "--set: got 'prefetch' but expected NAME=VALUE"),
        (["--set", "prefech=on"], "--set: no parameter 'prefech'; did you mean 'prefetch'?"),
        (["--set", "prefetch=maybe"], "--set: prefetch: got 'maybe' but expected true or false"),
        (["--set", "prefetch=on", "--no-prefetch"], "prefetch is given twice"),
        (["--cache-treshold", "1"], "no such option '--cache-treshold'. Did you mean"),
    ],
)
def test_bad_command_line(miractl: Callable[..., Result], args: list[str], words: str) -> None:
    result = miractl("config", "show", *args)
    assert result.exit_code == 2
    first, hint = result.stderr.splitlines()
    assert first.startswith(f"error: {words}")
    assert hint == "hint:  miractl config show --help"
    assert result.stdout == ""


def test_bad_variable_is_named(
    miractl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRACTL_CACHE_THRESHOLD", "abc")
    result = miractl("config", "show")
    assert result.exit_code == 2
    message = "error: MIRACTL_CACHE_THRESHOLD: got 'abc' but expected a number from 0 to 1\n"
    assert result.stderr == message


def test_path_needs_no_readable_file(miractl: Callable[..., Result]) -> None:
    path = write_config("{broken")
    assert miractl("config", "path").stdout == f"{path}\n"


@pytest.mark.parametrize(("omp", "expected"), [("3", 3), ("2,1", 2), ("", 8), ("0", 8), ("x", 8)])
def test_omp_num_threads_beats_all_others_and_is_shown(
    omp: str, expected: int, monkeypatch: pytest.MonkeyPatch, miractl: Callable[..., Result]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", omp)
    profile = Profile("mine", "", {"threads": 4, "sets": 3})
    settings = resolve_runtime(profile, {"threads": 8})
    origin = "env OMP_NUM_THREADS" if expected != 8 else "option"
    assert settings["threads"] == Setting(expected, origin)
    assert settings["sets"] == Setting(3, "profile mine")
    shown = miractl("config", "show", "--origin", "--threads", "8", "--sets", "2").stdout
    rows = [line.split(maxsplit=2) for line in shown.splitlines()]
    assert ["threads", str(expected), origin] in rows
    assert ["sets", "2", "option"] in rows
