"""Profiles: named sets of values of the parameters, for kinds of GPU.

A profile is a YAML file with `description`, `hardware`, `parameters` and `runtime`. It lists only
what it has a reason to set; the comment behind a value is its source and is shown with it.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from miractl import paths, units
from miractl.errors import UsageError
from miractl.parameters import SECTIONS, Parameter
from miractl.suggest import nearest
from miractl.yamlfile import Entry, read_mapping


@dataclass(frozen=True, slots=True)
class Hardware:
    """The GPU that a profile is meant for, as sold. None or empty: not said."""

    gpu_names: tuple[str, ...] = ()  # shell patterns for the name that the driver reports
    memory_bytes: tuple[int, ...] = ()  # one for each memory size sold
    pcie_generation: int | None = None
    pcie_lanes: int | None = None

    def matches(self, gpu_name: str) -> bool:
        """Whether the driver's name of a GPU is one of this profile's."""
        return any(fnmatchcase(gpu_name, pattern) for pattern in self.gpu_names)


@dataclass(frozen=True, slots=True)
class Profile:
    """A named set of values, of PARAMETERS and RUNTIME: only what the profile itself sets."""

    name: str
    description: str
    values: dict[str, Any]
    sources: dict[str, str] = field(default_factory=dict)  # name -> where its value is from
    hardware: Hardware = field(default_factory=Hardware)


def list_profiles() -> list[str]:
    """Names of the bundled profiles, `default` first."""
    names = sorted(path.stem for path in paths.profiles_dir().glob("*.yaml"))
    return sorted(names, key=lambda name: name != "default")


def load_profile(name_or_path: str) -> Profile:
    """Load a bundled profile by name, or a YAML file by path.

    Raises:
        UsageError: unknown name, unreadable file, unknown key, wrong type or value out of range.
    """
    return _read(profile_path(name_or_path))


def profile_path(name_or_path: str) -> Path:
    """The file of a bundled profile, or of one of your own. Raises UsageError: unknown name."""
    if name_or_path.endswith((".yaml", ".yml")) or os.sep in name_or_path:
        return Path(name_or_path)
    known = list_profiles()
    if name_or_path not in known:
        close = nearest(name_or_path, known)
        raise UsageError(
            f"no profile {name_or_path!r}{close} (there are {', '.join(known)})",
            hint="miractl profiles list, or --profile FILE.yaml for one of your own",
        )
    return paths.profiles_dir() / f"{name_or_path}.yaml"


def read_profile(path: Path) -> tuple[Profile, list[str]]:
    """The profile in a file, and everything that is wrong with it: one line each, in file order.

    What is wrong is left out of the profile. Raises UsageError for a file that is no mapping.
    """
    reader, entries = _Reader(), read_mapping(path)
    sections = {name: reader.section(entries, name) for name in ("hardware", *SECTIONS)}
    top = {key: entry for key, entry in entries.items() if key not in sections}
    description = reader.values(top, {"description": ("description", _text)}, sections)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for section, known in SECTIONS.items():
        kinds: dict[str, _Kind] = {name: (name, one.check) for name, one in known.items()}
        values |= reader.values(sections[section], kinds)
        sources |= {name: entry.comment for name, entry in sections[section].items()}
    profile = Profile(
        name=path.stem,
        description=description.get("description", ""),
        values=values,
        sources={name: sources[name] for name in values},
        hardware=Hardware(**reader.values(sections["hardware"], _HARDWARE)),
    )
    return profile, reader.problems


def known_entry(key: str, entry: Entry, known: Iterable[str]) -> None:
    """Raise UsageError, with the nearest known name, when `key` is not known."""
    if key not in known:
        raise UsageError(f"{entry.where}: unknown key {key!r}{nearest(key, known)}")


def _read(path: Path) -> Profile:
    profile, problems = read_profile(path)
    if problems:
        more = len(problems) - 1
        hint = f"miractl profiles check {path} shows {more} more" if more else None
        raise UsageError(problems[0], hint=hint)
    return profile


# How an entry is taken: under which name, and what makes its value of the text.
_Kind = tuple[str, Callable[[Any], Any]]


class _Reader:
    """Reads entries and keeps what is wrong with them."""

    def __init__(self) -> None:
        self._found: list[tuple[int, str]] = []  # line, message

    @property
    def problems(self) -> list[str]:
        """One line each, in file order."""
        return [message for _, message in sorted(self._found)]

    @contextmanager
    def _noting(self, entry: Entry) -> Iterator[None]:
        try:
            yield
        except UsageError as error:
            self._found.append((int(entry.where.rpartition(":")[2]), error.message))

    def section(self, entries: dict[str, Entry], name: str) -> dict[str, Entry]:
        """The entries within an entry; none without it."""
        entry = entries.get(name)
        if entry is None or entry.value is None:
            return {}
        with self._noting(entry):
            if isinstance(entry.value, dict):
                return entry.value
            raise UsageError(f"{entry.where}: {name} must hold `name: value` lines")
        return {}

    def values(
        self, entries: dict[str, Entry], kinds: dict[str, _Kind], others: Iterable[str] = ()
    ) -> dict[str, Any]:
        """The values that are right, by the names given for their keys; `others` are known too."""
        found = {}
        for key, entry in entries.items():
            with self._noting(entry):
                known_entry(key, entry, (*kinds, *others))
                name, check = kinds[key]
                found[name] = entry.checked(check)
        return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"got {value!r} but expected text")
    return value


def _size(value: Any) -> int:
    if not isinstance(value, str):
        raise ValueError(f"got {value!r} but expected a size like 24GB")
    return units.parse_bytes(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"got {value!r} but expected a list like [a, b]")
    return value


_HARDWARE: dict[str, _Kind] = {
    "gpu_names": ("gpu_names", lambda value: tuple(map(_text, _list(value)))),
    "memory": (
        "memory_bytes",
        lambda value: tuple(map(_size, _list(value))),
    ),
    "pcie_generation": ("pcie_generation", Parameter("pcie_generation", "int", 1, "", 1, 7).check),
    "pcie_lanes": ("pcie_lanes", Parameter("pcie_lanes", "int", 1, "", 1, 32).check),
}
