"""Snapshots as JSON, in both directions: what a machine was, kept in a file and taken for real."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from miractl.errors import UsageError
from miractl.probe.facts import HardwareSnapshot

SCHEMA = "miractl.hardware/1"


def to_json(snapshot: HardwareSnapshot) -> dict[str, Any]:
    """A JSON-ready dict with the schema's name."""
    return {"schema": SCHEMA, **asdict(snapshot)}


T = TypeVar("T")


def decode(kind: type[T], data: Any) -> T:
    """JSON's `data` as the dataclass `kind`. Raises ValueError, one line that names the field."""
    # pydantic takes a tenth of a second to import, and only files and children need it.
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def from_json(data: Any) -> HardwareSnapshot:
    """Inverse of `to_json`. Raises ValueError for another schema or a wrong field."""
    found = data.get("schema") if isinstance(data, dict) else None
    if found != SCHEMA:
        raise ValueError(f"schema is {found!r}, expected {SCHEMA!r}")
    return decode(HardwareSnapshot, data)


def load(path: str) -> HardwareSnapshot:
    """The machine in a file. Raises UsageError with the reason when it is none."""
    try:
        return from_json(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} is not a recorded machine: {error}",
            hint="record one with: miractl env --json > machine.json",
        ) from error
