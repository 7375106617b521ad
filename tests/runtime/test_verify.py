"""The proof itself: it passes on what is right and fails on what is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from miractl.runtime import verify as proof
from miractl.runtime.transfer_queue import TransferQueue
from tests.runtime.models import make_model, options


def test_all_cases_pass_and_the_wrong_expert_is_noticed(tmp_path: Path) -> None:
    make_model(tmp_path, "Qwen3Moe")
    cases = {case.name: case for case in proof.verify(options(tmp_path, None))}
    assert all(case.passed for case in cases.values())
    assert cases[proof.CONTROL].difference > 1e-2
    assert cases["predictions always wrong"].wasted > 0
    assert cases["top-k slots for all layers: waves"].waves > 0
    assert cases["one slot a layer above top-k"].slots == 3 * (2 + 1)


def test_a_wrong_expert_in_a_slot_fails_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, miractl: Callable[..., Result]
) -> None:
    """The same fault that the control makes, but unannounced."""
    make_model(tmp_path, "Qwen3Moe")
    build = TransferQueue.__init__

    def sabotaged(self: TransferQueue, mover: object, *args: object, **kwargs: object) -> None:
        build(self, proof._NeighbourMover(mover, 8), *args, **kwargs)

    monkeypatch.setattr(TransferQueue, "__init__", sabotaged)
    result = miractl("verify", str(tmp_path))
    assert result.exit_code == 1
    assert "outputs differ from the stock model: a quarter of the experts" in result.stderr


def test_a_folder_that_is_not_there_is_one_line(miractl: Callable[..., Result]) -> None:
    result = miractl("verify", "./nowhere")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no model folder 'nowhere'")
