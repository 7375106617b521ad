"""A figure measured several times: the middle, and how far the others lie from it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lowest and highest of some measurements, in their unit."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Raises ValueError for no values."""
        if not values:
            raise ValueError("Got no measurements but expected some")
        return cls(median(values), min(values), max(values))
