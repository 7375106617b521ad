"""Quantities: what is read, what is refused, what is printed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miractl import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512B", 512),
        ("96MiB", 96 * 2**20),
        ("1.1GB", 1_100_000_000),
        (" 8 gib ", 8 * 2**30),
        (".5KiB", 512),
        ("1e3kB", 1_000_000),
    ],
)
def test_parse_bytes(text: str, expected: int) -> None:
    assert units.parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text", ["", "96", "MiB", "-1MiB", "1 MiB x", "1..2MB", "nanMB", "1e999GB", "8GB/s"]
)
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        units.parse_bytes(text)


def test_parse_other_quantities() -> None:
    assert units.parse_rate("15.8GB/s") == pytest.approx(15.8e9)
    assert units.parse_seconds("300ms") == pytest.approx(0.3)
    assert units.parse_seconds("5min") == 300
    assert units.parse_share("40%") == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (units.parse_rate, "15.8GB"),
        (units.parse_rate, "15.8"),
        (units.parse_seconds, "300"),
        (units.parse_seconds, "3 GB"),
        (units.parse_share, "40"),
        (units.parse_share, "0%"),
        (units.parse_share, "101%"),
    ],
)
def test_parse_refuses_other_quantities(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(ValueError, match="write it like"):
        parse(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "n/a"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (352_321_536, "336 MiB"),
        (1.1e9, "1.02 GiB"),
        (13 * 2**40, "13 TiB"),
    ],
)
def test_format_bytes(value: float | None, expected: str) -> None:
    assert units.format_bytes(value) == expected


def test_format_other_quantities() -> None:
    assert units.format_rate(15.75e9) == "15.8 GB/s"
    assert units.format_seconds(0.3) == "300 ms"
    assert units.format_seconds(1.5e-6) == "1.50 µs"
    assert units.format_share(0.4) == "40.0 %"
    assert {units.format_rate(None), units.format_seconds(None), units.format_share(None)} == {
        "n/a"
    }


@given(st.integers(1, 2**50))
def test_printed_bytes_read_back_within_their_digits(value: int) -> None:
    read = units.parse_bytes(units.format_bytes(value))
    assert math.isclose(read, value, rel_tol=0.006)


def test_one_is_no_plural() -> None:
    assert [units.counted(n, "slot") for n in (0, 1, 2000)] == ["0 slots", "1 slot", "2,000 slots"]
