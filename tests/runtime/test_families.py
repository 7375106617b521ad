"""Every row of docs/models.md, proved."""

from pathlib import Path

import pytest
import torch

from miractl.errors import MiractlError
from miractl.runtime.outline import read_outline
from tests.runtime.families import EXCLUDED, FAMILIES, make_family, page, small_config
from tests.runtime.models import load

ROOT = Path(__file__).parents[2]
PROMPT = torch.randint(3, 128, (1, 24), generator=torch.Generator().manual_seed(0))
START = PROMPT[:, :8]
GREEDY = {"max_new_tokens": 32, "do_sample": False}


@pytest.mark.parametrize(("fused", "tied"), [(False, False), (True, True)], ids=["hub", "fused"])
@pytest.mark.parametrize("model_type", FAMILIES)
@torch.no_grad()
def test_outputs_equal_the_stock_model(
    tmp_path: Path, model_type: str, fused: bool, tied: bool
) -> None:
    stock = make_family(tmp_path, model_type, fused=fused, tied=tied)
    logits = stock(PROMPT).logits
    text = stock.generate(START, attention_mask=torch.ones_like(START), **GREEDY)
    outline = read_outline(tmp_path)
    for slots in (outline.experts, outline.top_k + 1):
        engine = load(tmp_path, slots)
        try:
            assert (engine.model(PROMPT).logits - logits).abs().max() <= 1e-5
            mine = engine.model.generate(START, attention_mask=torch.ones_like(START), **GREEDY)
        finally:
            engine.close()
        assert torch.equal(mine, text)


@pytest.mark.parametrize("model_type", EXCLUDED)
def test_what_cannot_be_managed_is_refused(tmp_path: Path, model_type: str) -> None:
    config = small_config(model_type)
    config.architectures = [EXCLUDED[model_type][0]]
    config.save_pretrained(tmp_path)
    with pytest.raises(MiractlError, match=f"{model_type} has no experts that this version can"):
        read_outline(tmp_path)


def test_the_page_is_that_of_the_tables() -> None:
    assert (ROOT / "docs" / "models.md").read_text() == page()
