"""Tokens whose experts cannot be read: which they are, and that the others are computed."""

from pathlib import Path

import pytest
import torch

from miractl.errors import MiractlError
from miractl.policy.keys import ExpertKey
from miractl.runtime.movers import DiskMover
from miractl.runtime.ticket import Course
from tests.runtime.models import load, make_model

EXPERT = 3


@pytest.mark.parametrize("part_bytes", [64 << 20, 1])
@torch.no_grad()
def test_lost_tokens_get_zeros_and_the_others_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    make_model(tmp_path, "Qwen3Moe")
    monkeypatch.setattr("miractl.runtime.runner.PART_BYTES", part_bytes)
    move, broken = DiskMover.move, False

    def fail_one(mover: DiskMover, key: ExpertKey, slot: int, chunks: int) -> Course:
        if broken and key == (0, EXPERT):
            raise MiractlError("cannot read it")
        return move(mover, key, slot, chunks)

    monkeypatch.setattr(DiskMover, "move", fail_one)
    engine = load(tmp_path, 6, prefetch=False)
    prompt = torch.tensor([[5, 17, 80, 3, 44, 61, 7, 29]])
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    experts = engine.model.get_submodule(engine.outline.modules[0])
    hook = experts.register_forward_hook(lambda _, given, out: seen.append((given[1], out.clone())))
    try:
        engine.model(prompt)
        whole = seen.pop()[1]
        if engine.cache.residency.is_resident(ExpertKey(0, EXPERT)):
            engine.cache.residency.release(ExpertKey(0, EXPERT))
        broken = True
        with pytest.raises(MiractlError, match="cannot read it"):
            engine.model(prompt)
        engine.losses.are_taken = True
        engine.model(prompt)
        ids, out = seen.pop()
        lost = (ids == EXPERT).any(dim=-1)
        assert lost.any()
        assert not lost.all()
        assert engine.losses.take() == dict.fromkeys(
            lost.nonzero().flatten().tolist(), "cannot read it"
        )
        assert torch.equal(out, torch.where(lost[:, None], 0.0, whole))
        assert engine.losses.take() == {}
    finally:
        hook.remove()
        engine.close()
