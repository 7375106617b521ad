"""Where miractl keeps files: XDG folders, and the data that ships with the package."""

import os
from pathlib import Path

PACKAGE = Path(__file__).parent
DEMO_MODEL = PACKAGE / "demo" / "model"
DEMO_PROMPTS = PACKAGE / "demo" / "prompts.txt"
DEMO_TRACE = PACKAGE / "demo" / "trace.npz"


def _xdg(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable, "")
    # The XDG specification says that a relative path is to be ignored.
    base = Path(value) if os.path.isabs(value) else Path.home() / fallback
    return base / "miractl"


def config_file() -> Path:
    """The user's configuration; `MIRACTL_CONFIG` names another file."""
    override = os.environ.get("MIRACTL_CONFIG")
    return Path(override) if override else _xdg("XDG_CONFIG_HOME", ".config") / "config.yaml"


def state_dir() -> Path:
    """Calibration, recordings, saved heat."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def cache_dir() -> Path:
    """Whatever can be made again."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def profiles_dir() -> Path:
    """The bundled profiles: inside an installed package, or at the top of a checkout."""
    packaged = PACKAGE / "_profiles"
    return packaged if packaged.is_dir() else PACKAGE.parent / "profiles"
