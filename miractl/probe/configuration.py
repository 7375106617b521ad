"""The user's settings: whether the configuration file, the environment and the profile parse."""

from dataclasses import dataclass

from miractl import paths
from miractl.config import resolve_parameters, resolve_settings
from miractl.errors import UsageError
from miractl.profiles import load_profile


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is set where, or the first thing that is wrong with it."""

    file: str | None  # None: there is none
    profile: str | None
    origin: str | None  # where the profile was chosen
    error: str | None
    hint: str | None = None


def read() -> Configuration:
    """All layers below the command line. A mistake is an answer, not an error."""
    path = paths.config_file()
    file = str(path) if path.exists() else None
    try:
        chosen = resolve_settings({})["profile"]
        resolve_parameters(load_profile(chosen.value), {})
    except UsageError as error:
        return Configuration(file, None, None, error.message, error.hint)
    return Configuration(file, chosen.value, chosen.origin, None)
