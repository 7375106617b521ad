"""Options of an emulated link: `--emulate-link` and `--host-compute`."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from miractl.cli.quantities import UnitType
from miractl.profiles import list_profiles, load_profile
from miractl.units import parse_rate

F = TypeVar("F", bound=Callable[..., Any])


def parse_link(text: str) -> float:
    """Bytes a second: as written, or what the link of a profile's GPU can do on paper.

    Raises ValueError for what is neither, or a rate of 0.
    """
    from miractl.probe.pci import link_rate

    if text in list_profiles():
        hardware = load_profile(text).hardware
        rate = link_rate(hardware.pcie_generation, hardware.pcie_lanes)
        if rate is None:
            raise ValueError(f"profile {text} tells of no link; say a rate, 15.8GB/s")
        return rate
    rate = parse_rate(text)
    if not rate > 0:
        raise ValueError(f"got {text!r} but expected more than 0")
    return rate


def host_option(f: F) -> F:
    """`host_compute`, a mode or None."""
    return click.option(
        "--host-compute",
        type=click.Choice(("auto", "on", "off")),
        help="Beside a device: compute missing experts on the host meanwhile, where that is sooner"
        " (auto), all of them, or none.  [default: auto behind an emulated link, off beside a GPU]",
    )(f)


def link_options(f: F) -> F:
    """`emulate_link`, bytes a second or None, and `host_compute`."""
    return click.option(
        "--emulate-link",
        type=UnitType("rate|profile", parse_link),
        help="Behave as if the slots were a device's behind a link of this rate, 15.8GB/s or a"
        " profile's. All experts are in RAM, nothing is copied, the time passes.",
    )(host_option(f))
