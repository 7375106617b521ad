"""`miractl replay --as-recorded`: what it prints, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from tests.simulate.conftest import random_routing

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    routing = random_routing(2, 60, 2, 8, 2)
    steps = np.maximum(0, np.arange(60) - 29)  # a prompt of thirty tokens
    path = tmp_path / "t.npz"
    np.savez(path, topk_ids=routing.ids, topk_probs=routing.probabilities, steps=steps)
    return str(path)


def test_steps_are_taken_as_they_were(trace: str, miractl: Callable[..., Result]) -> None:
    result = miractl("replay", trace, "--as-recorded", "--slots", "4", "--policy", "lru,learned")
    assert result.exit_code == 0
    assert "60 tokens in 31 steps as recorded" in result.stdout
    rows = [line.split()[0] for line in result.stdout.splitlines()[3:]]
    assert rows == ["8", "POLICY", "lru", "learned"]


def test_json_has_the_counts(trace: str, miractl: Callable[..., Result]) -> None:
    result = miractl("replay", trace, "--as-recorded", "--slots", "8", "--json")
    (run,) = json.loads(result.stdout)["traces"][0]["runs"]
    assert (run["slots"], run["ways"]) == (21, [8, 8])
    for policy in run["policies"]:
        assert (policy["steps"], policy["tokens"]) == (31, 60)
        # All fit, so each is missed once.
        assert policy["lookups"] - policy["hits"] == policy["entered"] <= 16


def test_without_a_word_it_takes_the_slots_of_the_server(
    trace: str, tmp_path: Path, miractl: Callable[..., Result]
) -> None:
    path = tmp_path / "with.npz"
    with np.load(trace) as arrays:
        np.savez(path, meta=json.dumps({"slots": 9, "ways": [4, 4]}), **arrays)
    result = miractl("replay", str(path), "--as-recorded", "--json")
    (run,) = json.loads(result.stdout)["traces"][0]["runs"]
    assert (run["slots"], run["ways"]) == (9, [4, 4])
    assert (
        "8 residents in 9 slots of the server"
        in miractl("replay", str(path), "--as-recorded").stdout
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--policy", "lru,optimum"], "--policy optimum knows the future"),
        (["--policy", "beladi"], "no policy 'beladi'"),
        (["--csv"], "prints a table or JSON"),
        (["--slots", "9"], "9 is not 1 to 8 a layer"),
    ],
)
def test_what_it_cannot_do(
    trace: str, more: list[str], said: str, miractl: Callable[..., Result]
) -> None:
    result = miractl("replay", trace, "--as-recorded", *more)
    assert result.exit_code == 2
    assert said in result.stderr
