"""GGUF files, which are not read: the refusal says what to take instead."""

from pathlib import Path

from miractl.errors import UsageError

SUFFIX = ".gguf"


def refuse_gguf(path: Path) -> None:
    """Raise UsageError for a GGUF file, and for a folder of them without safetensors files."""
    if path.is_dir():
        if any(path.glob("*.safetensors")) or not any(path.glob(f"*{SUFFIX}")):
            return
        what = "holds its weights as GGUF files"
    elif path.is_file() and path.suffix.lower() == SUFFIX:
        what = "is a GGUF file"
    else:
        return
    raise UsageError(
        f"{path} {what}, which miractl does not read",
        hint="download the safetensors checkpoint that it was made from, then: "
        "miractl pack FOLDER -o DIR --experts int4",
    )
