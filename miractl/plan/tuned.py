"""The profile that a search ends with, and any profile as the text of its file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from miractl.config import Setting
from miractl.outfile import write_whole
from miractl.parameters import PARAMETERS, SECTIONS
from miractl.plan.tuning import Candidate, Shape
from miractl.probe.devices import Gpu
from miractl.profiles import Hardware, Profile
from miractl.units import MIB

COLUMN = 32  # of the comments


def tuned_profile(
    name: str,
    description: str,
    base: Profile,
    settings: Mapping[str, Setting],
    layout: dict[str, Any],
    source: str,
    gpu: Gpu | None = None,
) -> Profile:
    """The settings in force where they are no defaults, and over them a measured `layout`."""
    defaults = ("default", "profile default")
    kept = {n: s for n, s in settings.items() if n in PARAMETERS and s.origin not in defaults}
    values = {name: setting.value for name, setting in kept.items()} | layout
    sources = {name: _source(name, setting, base) for name, setting in kept.items()}
    hardware = Hardware()
    if gpu is not None and gpu.name is not None:
        hardware = Hardware((gpu.name,), (gpu.memory.total,) if gpu.memory else ())
    return Profile(
        name, description, values, sources | dict.fromkeys(layout, source), hardware=hardware
    )


def layout_of(candidate: Candidate, shape: Shape, has_threads: bool) -> dict[str, Any]:
    """What a candidate says in a profile: only what makes a difference."""
    found: dict[str, Any] = {}
    if not shape.is_whole:
        found |= {"prefetch": candidate.staged > 0, "sets": candidate.sets}
        if candidate.staged:
            found["max_staged_experts"] = candidate.staged
    return found | ({"threads": candidate.threads} if has_threads else {})


def profile_text(profile: Profile) -> str:
    """The YAML of a profile, with the source of each value as its comment."""
    return "\n".join(_lines(profile)) + "\n"


def write_profile(target: Path, profile: Profile) -> None:
    """Write the file whole or not at all. Raises MiractlError."""
    write_whole(target, profile_text(profile).encode())


def _lines(profile: Profile) -> Iterator[str]:
    yield f"description: {_scalar(profile.description)}"
    hardware = profile.hardware
    if hardware.gpu_names:
        yield "\nhardware:"
        yield _line("gpu_names", f"[{_scalar(hardware.gpu_names[0])}]", "as its driver says")
        if hardware.memory_bytes:
            size = f"[{hardware.memory_bytes[0] // MIB}MiB]"
            yield _line("memory", size, "as its driver says")
    for section, known in SECTIONS.items():
        if own := [name for name in known if name in profile.values]:
            yield f"\n{section}:"
            for name in own:
                yield _line(name, _scalar(profile.values[name]), profile.sources.get(name, ""))


def _line(name: str, text: str, comment: str) -> str:
    line = f"  {name}: {text}"
    return f"{line:<{COLUMN}} # {comment}" if comment else line


def _scalar(value: Any) -> str:
    """One value as YAML in one line."""
    text: str = yaml.safe_dump([value], default_flow_style=True, allow_unicode=True, width=2**20)
    return text.strip()[1:-1]


def _source(name: str, setting: Setting, base: Profile) -> str:
    """What the base profile says of its value, or which layer it came from."""
    if setting.origin.startswith("profile "):
        return base.sources.get(name) or setting.origin
    return setting.origin.replace("option", "the command line")
