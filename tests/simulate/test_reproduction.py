"""docs/reproduction.md says what its script says, and its sentences hold."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.articles import collaborative, kernels, mira
from miractl.simulate.timing import Misses

DOCUMENT = Path(__file__).parents[2] / "docs" / "reproduction.md"


@pytest.mark.parametrize(
    "part",
    [kernels.section, collaborative.implied, collaborative.readings, mira.section],
)
def test_the_document_is_what_the_script_prints(part: Callable[[], str]) -> None:
    assert part() in DOCUMENT.read_text(encoding="utf-8"), "python -m bench.reproduce"


def test_the_published_divisions_are_the_best() -> None:
    found = collaborative.division_speeds(Misses.FILL)
    for cores, ways in ((4, 4), (8, 5)):
        assert found[cores].index(max(found[cores])) + 1 == ways
    assert found[24][7] > 0.98 * max(found[24])
    idle = collaborative.division_speeds(Misses.HOST)
    assert {speeds.index(max(speeds)) + 1 for speeds in idle.values()} == {2}
