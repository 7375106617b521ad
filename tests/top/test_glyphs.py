"""Bars and charts out of characters."""

import pytest

from miractl.top.glyphs import ASCII, UNICODE, Glyphs, bar, chart, column, histogram


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0.0, "────"), (0.5, "██──"), (1.0, "████"), (0.28, "█▏──"), (None, "────"), (7.0, "████")],
)
def test_bar(share: float | None, drawn: str) -> None:
    assert "".join(bar(share, 4, UNICODE)) == drawn


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("width", [0, 1, 7, 40])
def test_bars_are_as_wide_as_asked(glyphs: Glyphs, width: int) -> None:
    for percent in range(101):
        assert len("".join(bar(percent / 100, width, glyphs))) == width


def test_a_small_value_differs_from_none() -> None:
    assert column(0.0, 2, UNICODE) == " ▁"
    assert column(None, 2, UNICODE) == "  "


def test_chart_shows_the_newest_at_the_right() -> None:
    assert chart([0.0, 0.5, None, 1.0], 6, 1, UNICODE) == ["  ▁▄ █"]
    assert chart([0.25, 0.5, 0.75, 1.0], 4, 2, UNICODE) == ["  ▄█", "▄███"]
    assert chart([0.1, 0.9, 1.0], 2, 1, UNICODE) == ["▇█"]
    assert chart([], 3, 2, UNICODE) == ["   ", "   "]


def test_histogram_is_relative_to_its_highest_bar() -> None:
    assert histogram([0, 4, 2], 12, 2, UNICODE) == ["    ███     ", "    ███ ███ "]
    assert histogram([0, 0], 3, 1, UNICODE) == ["   "]
    assert histogram([1, 2, 3], 3, 1, ASCII) == [".:#"]


def test_ascii_has_a_character_for_all() -> None:
    assert ASCII.text("50 µs · 2 × 3 ≥ 1 ≤ 2 ● ─ …").isascii()
