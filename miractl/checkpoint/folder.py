"""The folder that a user names as a model: whether one can be there, told without reading it."""

from pathlib import Path

from miractl.checkpoint.gguf import refuse_gguf
from miractl.errors import UsageError

CONFIG = "config.json"


def require_model(folder: Path, hint: str) -> None:
    """Raise UsageError unless there is a folder with a config.json; `hint` says what to type."""
    refuse_gguf(folder)
    if not folder.is_dir():
        raise UsageError(f"no model folder {str(folder)!r}", hint=hint)
    if not (folder / CONFIG).is_file():
        raise UsageError(f"{folder}: no model here, there is no {CONFIG}", hint=hint)
