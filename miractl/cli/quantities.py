"""Quantities with their unit on the command line."""

from collections.abc import Callable
from typing import Any

import click

from miractl import units


class UnitType(click.ParamType[Any]):
    """A quantity with its unit on the command line, in base units inside."""

    def __init__(self, name: str, parse: Callable[[str], float]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Base units. Fails with how to write it."""
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE = UnitType("size", units.parse_bytes)
RATE = UnitType("rate", units.parse_rate)
SECONDS = UnitType("duration", units.parse_seconds)
