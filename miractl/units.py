"""Bytes and seconds inside, units only at the border: parsing and printing of quantities.

Sizes need a unit (`96MiB`, `1.1GB`), so that nobody has to guess; `KB, MB, GB, TB` are powers of
1000 and `KiB, MiB, GiB, TiB` powers of 1024. `None` is an unknown quantity and prints as `n/a`.
"""

import math
import re

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
_BYTES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(
    r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z%]*(?:/s)?)\s*", re.IGNORECASE
)


def _split(text: str, kind: str, example: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None or not math.isfinite(number := float(match[1])):
        raise ValueError(f"{text!r} is not a {kind}; write it like {example}")
    return number, match[2].lower()


def parse_bytes(text: str) -> int:
    """Bytes of `96MiB`, `1.1GB` or `512B`. Raises ValueError without a known unit."""
    number, unit = _split(text, "size", "96MiB or 8GiB")
    if unit not in _BYTES:
        raise ValueError(f"{text!r} needs a unit; write it like 96MiB or 8GiB")
    return round(number * _BYTES[unit])


def parse_rate(text: str) -> float:
    """Bytes per second of `15.8GB/s`. Raises ValueError without a known unit."""
    number, unit = _split(text, "rate", "15.8GB/s")
    if not unit.endswith("/s") or unit[:-2] not in _BYTES:
        raise ValueError(f"{text!r} needs a unit; write it like 15.8GB/s")
    return number * _BYTES[unit[:-2]]


def parse_seconds(text: str) -> float:
    """Seconds of `300ms`, `1.5s` or `5min`. Raises ValueError without a known unit."""
    number, unit = _split(text, "duration", "300ms or 5s")
    if unit not in _SECONDS:
        raise ValueError(f"{text!r} needs a unit; write it like 300ms or 5s")
    return number * _SECONDS[unit]


def parse_share(text: str) -> float:
    """Share in (0, 1] of `40%`. Raises ValueError for anything else."""
    number, unit = _split(text, "share", "40%")
    if unit != "%" or not 0 < number <= 100:
        raise ValueError(f"{text!r} is not a share; write it like 40%, above 0% and up to 100%")
    return number / 100


def counted(count: int, noun: str) -> str:
    """`1 thread`, `2 threads`, `1,024 threads`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    """Three significant digits in the largest unit that leaves at least 1; whole numbers bare."""
    # 0.9995: what would round to 1.00 of the next unit is said in that unit.
    factor, unit = next((s for s in steps if abs(value) >= 0.9995 * s[0]), steps[-1])
    scaled = value / factor
    if scaled == round(scaled):
        return f"{scaled:.0f} {unit}"
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:.{digits}f} {unit}"


def format_bytes(value: float | None) -> str:
    """`96 MiB`, `1.10 GiB`; three significant digits, binary units."""
    if value is None:
        return "n/a"
    return _scaled(value, [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B")])


def format_rate(value: float | None) -> str:
    """`15.8 GB/s`; three significant digits, decimal units as links are sold."""
    if value is None:
        return "n/a"
    return _scaled(value, [(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")])


def format_seconds(value: float | None) -> str:
    """`300 ms`, `1.50 s`; three significant digits."""
    if value is None:
        return "n/a"
    return _scaled(
        value, [(3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")]
    )


def format_share(value: float | None) -> str:
    """`40.0 %`."""
    return "n/a" if value is None else f"{value * 100:.1f} %"
