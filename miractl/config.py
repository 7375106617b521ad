"""Layered settings: where a value comes from, and which of several wins.

Command-line options beat environment variables (`MIRACTL_*`), these the configuration file, the
file beats the profile, and the profile beats the defaults. An empty variable counts as not set.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from miractl import paths
from miractl.errors import UsageError
from miractl.parameters import PARAMETERS, RUNTIME, Parameter
from miractl.profiles import Profile, known_entry
from miractl.suggest import nearest
from miractl.yamlfile import Entry, read_mapping

DEFAULT_CONCURRENCY, MOST_CONCURRENCY = 8, 4096  # beyond their memory, requests wait
LEAST_CONTEXT = 16  # tokens
OMP_THREADS = "OMP_NUM_THREADS"
_LEVELS = ("debug", "info", "warning", "error")
_ALL = (
    Parameter("profile", "str", "default", "Name of a profile, or a YAML file."),
    Parameter("url", "str", "http://127.0.0.1:8000", "Address of the running server."),
    Parameter("host", "str", "127.0.0.1", "Address to listen on."),
    Parameter("port", "int", 8000, "Port to listen on; 0 takes a free one.", 0, 65535),
    Parameter("device", "str", "auto", "Where to compute: auto, cpu or cuda:N."),
    Parameter("expert_memory", "str", None, "Memory for experts: 8GiB, or 40% of all experts."),
    Parameter("context", "int", None, "Context window.", LEAST_CONTEXT, unit="tokens"),
    Parameter(
        "kv_memory",
        "str",
        None,
        "Most memory for keys and values; requests beyond it wait. By itself 1GiB, less where"
        " memory is short.",
    ),
    Parameter(
        "max_concurrency",
        "int",
        DEFAULT_CONCURRENCY,
        "Requests that generate at the same time; others wait.",
        1,
        MOST_CONCURRENCY,
    ),
    Parameter("log_level", "str", "info", "Least severe message to log.", choices=_LEVELS),
    Parameter("log_format", "str", "text", "Form of the log lines.", choices=("text", "json")),
)
# What can be set besides the runtime's parameters and layout. A profile does not hold these.
SETTINGS: dict[str, Parameter] = {setting.name: setting for setting in _ALL}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it came from: `option`, `env NAME`, `file PATH:LINE`, `profile a10`."""

    value: Any
    origin: str


def values_of(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The values alone."""
    return {name: setting.value for name, setting in settings.items()}


def given(**options: Any) -> dict[str, Any]:
    """Those options that the command line names."""
    return {name: value for name, value in options.items() if value is not None}


def read_config() -> dict[str, Entry]:
    """Entries of the configuration file, checked; empty without a file. Raises UsageError."""
    path = paths.config_file()
    if not path.exists() and not os.environ.get("MIRACTL_CONFIG"):
        return {}
    entries = read_mapping(path)
    known = PARAMETERS | RUNTIME | SETTINGS
    for key, entry in entries.items():
        known_entry(key, entry, known)
        entry.checked(known[key].check)
    return entries


def resolve_parameters(profile: Profile, options: dict[str, Any]) -> dict[str, Setting]:
    """All 12 parameters, given the options of the command line. Raises UsageError."""
    return _resolve(PARAMETERS, options, profile)


def resolve_runtime(profile: Profile, options: dict[str, Any]) -> dict[str, Setting]:
    """Everything in RUNTIME; OMP_NUM_THREADS beats even an option. Raises UsageError."""
    settings = _resolve(RUNTIME, options, profile)
    if (threads := omp_threads(os.environ)) is not None:
        settings["threads"] = Setting(threads, f"env {OMP_THREADS}")
    return settings


def omp_threads(environ: Mapping[str, str]) -> int | None:
    """What OMP_NUM_THREADS says; None if it says nothing that is a number of threads."""
    first = environ.get(OMP_THREADS, "").split(",")[0].strip()  # of a list, one a nesting level
    return int(first) if first.isdigit() and int(first) > 0 else None


def resolve_settings(options: dict[str, Any]) -> dict[str, Setting]:
    """Everything in SETTINGS, given the options of the command line. Raises UsageError."""
    return _resolve(SETTINGS, options, None)


def _resolve(
    known: dict[str, Parameter], options: dict[str, Any], profile: Profile | None
) -> dict[str, Setting]:
    for name in options:
        if name not in known:
            raise UsageError(f"no parameter {name!r}{nearest(name, known)}")
    entries = read_config()
    return {
        name: _winner(parameter, options, entries.get(name), profile)
        for name, parameter in known.items()
    }


def _winner(
    parameter: Parameter, options: dict[str, Any], entry: Entry | None, profile: Profile | None
) -> Setting:
    name = parameter.name
    try:
        if name in options:
            return Setting(parameter.check(options[name]), "option")
        if text := os.environ.get(parameter.env):
            return Setting(parameter.parse(text), f"env {parameter.env}")
    except ValueError as error:
        place = name if name in options else parameter.env
        raise UsageError(f"{place}: {error}") from None
    if entry is not None:
        return Setting(entry.checked(parameter.check), f"file {entry.where}")
    if profile is not None and name in profile.values:
        return Setting(profile.values[name], f"profile {profile.name}")
    return Setting(parameter.default, "default")
