"""A YAML file of settings: a mapping whose entries know their line and the comment behind them.

Every error is one line that starts with the file and, where there is one, the line number.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from miractl.errors import UsageError


@dataclass(frozen=True, slots=True)
class Entry:
    """One `key: value  # comment`. The value of a nested mapping is again a dict of entries."""

    key: str
    value: Any
    where: str  # "path:line", to start an error with
    comment: str  # "" without one

    def checked(self, check: Callable[[Any], Any]) -> Any:
        """`check(value)`, its ValueError told with the place. Raises UsageError."""
        try:
            return check(self.value)
        except ValueError as error:
            raise UsageError(f"{self.where}: {self.key}: {error}") from None


def read_mapping(path: Path) -> dict[str, Entry]:
    """Read `path`. Raises UsageError for anything but one YAML mapping with unique keys."""
    try:
        text = path.read_text(encoding="utf-8")
        loader = yaml.SafeLoader(text)
        return _entries(loader, loader.get_single_node(), path, text.splitlines())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{path}{line}: not valid YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        raise UsageError(f"{path}: not valid YAML: {error.reason}") from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None


def _entries(
    loader: yaml.SafeLoader, node: yaml.Node | None, path: Path, lines: list[str]
) -> dict[str, Entry]:
    if node is None:
        raise UsageError(f"{path}: empty, expected `name: value` lines")
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(f"{path}:{node.start_mark.line + 1}: expected `name: value` lines")
    entries: dict[str, Entry] = {}
    for key_node, value_node in node.value:
        where = f"{path}:{key_node.start_mark.line + 1}"
        key = str(key_node.value)
        if key in entries:
            first = entries[key].where.rpartition(":")[2]
            raise UsageError(f"{where}: {key} is given twice, first in line {first}")
        value: Any
        if isinstance(value_node, yaml.MappingNode):
            value = _entries(loader, value_node, path, lines)
        else:
            value = _scalar(loader, value_node, where)
        entries[key] = Entry(key, value, where, _comment(value_node, lines))
    return entries


def _scalar(loader: yaml.SafeLoader, node: yaml.Node, where: str) -> Any:
    try:
        return loader.construct_object(node, deep=True)
    except ValueError as error:  # such as a date that no calendar has
        raise UsageError(f"{where}: not valid YAML: {error}") from None


def _comment(node: yaml.Node, lines: list[str]) -> str:
    end = node.end_mark
    rest = lines[end.line][end.column :].strip() if end.line < len(lines) else ""
    return rest.removeprefix("#").strip() if rest.startswith("#") else ""
