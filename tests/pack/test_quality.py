"""`miractl bench quality` on the demo model, and on weights that are hard to code."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

from miractl.checkpoint.packed import RECORDS
from miractl.paths import DEMO_MODEL
from miractl.runtime.packing import pack
from miractl.runtime.quality import expert_errors, noise_of
from tests.runtime.models import make_model

Run = Callable[..., Result]
TEXT = """\
In the beginning the miller had one wheel, and the wheel had eight teeth. And it came to pass, when
the river rose, that he said unto his sons, Go ye to the hill and bring stones for the wall.

def turn(wheel, teeth):
    for tooth in range(teeth):
        wheel.push(tooth)
    return wheel.angle

Question: A miller grinds 12 sacks a day. How many sacks does he grind in 3 weeks? Answer: In one
week he grinds 12 * 7 = 84 sacks. In 3 weeks he grinds 84 * 3 = 252 sacks.

static int count_teeth(const Wheel *pWheel){ return pWheel->nTooth; }
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model as int8, the rest too or not, and int4."""
    folder = tmp_path_factory.mktemp("packed")
    for kind in ("int8", "int4"):
        pack(DEMO_MODEL, folder / kind, kind)
    pack(DEMO_MODEL, folder / "int8-dense", "int8", dense="int8")
    return folder


@pytest.mark.parametrize(
    ("kind", "bound", "error"),
    [("int8", 0.002, 0.0075), ("int8-dense", 0.002, 0.0075), ("int4", 0.03, 0.085)],
)
def test_the_demo_model_loses_little(
    tmp_path: Path, packed: Path, miractl: Run, kind: str, bound: float, error: float
) -> None:
    (tmp_path / "made-up.txt").write_text(TEXT)
    result = miractl(
        *("bench", "quality", str(packed / kind), "--text", str(tmp_path / "made-up.txt")),
        *("--against", str(DEMO_MODEL), "--json"),
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["schema"] == "miractl.bench.quality/1"
    assert 1 < found["source_bits_per_byte"] < 5
    assert 0 < abs(found["change"]) < bound
    assert len(found["errors"]) == 192 * 2
    assert error / 10 < found["errors"][0]["relative"] < error
    card = (packed / kind / "README.md").read_text()
    assert f"{found['change']:+.3%}" in card
    assert card.count("## Quality") == 1
    inspected = miractl("inspect", str(packed / kind), "--verify-hashes")
    assert inspected.exit_code == 0
    blocks = "experts int8, attention and head int8 blocks, the rest" in inspected.stdout
    assert blocks == (kind == "int8-dense")


def test_what_windows_differ_by_is_noise() -> None:
    """Equal shifts are no noise; of two windows that shift apart, the mean is as uncertain."""
    assert noise_of([1.0], [2.0]) is None
    assert noise_of([1.1, 2.2, 3.3], [1.0, 2.0, 3.0]) == pytest.approx(0, abs=1e-12)
    assert noise_of([101.0, 99.0], [100.0, 100.0]) == pytest.approx(0.01)


def test_a_sample_of_windows_is_told(tmp_path: Path, packed: Path, miractl: Run) -> None:
    (tmp_path / "long.txt").write_text(TEXT * 8)
    result = miractl(
        *("bench", "quality", str(packed / "int4"), "--text", str(tmp_path / "long.txt")),
        *("--against", str(DEMO_MODEL), "--tokens", "1024"),
    )
    assert result.exit_code == 0, result.output
    assert re.search(r"bytes, in 2 of \d+ windows\n", result.stdout)
    assert "is noise of which windows were read)" in result.stdout


def test_a_ruined_expert_shows(tmp_path: Path, miractl: Run) -> None:
    """What the bounds above are worth: records that mean nothing are far outside of them."""
    pack(DEMO_MODEL, tmp_path / "packed", "int4")
    records = tmp_path / "packed" / RECORDS
    records.write_bytes(bytes(records.stat().st_size))
    (tmp_path / "made-up.txt").write_text(TEXT)
    result = miractl(
        *("bench", "quality", str(tmp_path / "packed"), "--text", str(tmp_path / "made-up.txt")),
        *("--against", str(DEMO_MODEL), "--json"),
    )
    found = json.loads(result.stdout)
    assert found["change"] > 0.1
    assert found["errors"][0]["relative"] == pytest.approx(1)


def test_bits_per_byte_are_those_of_the_stock_model(tmp_path: Path, miractl: Run) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (tmp_path / "made-up.txt").write_text(TEXT)
    result = miractl("bench", "quality", str(DEMO_MODEL), "--text", str(tmp_path / "made-up.txt"))
    assert result.exit_code == 0, result.output
    model = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(DEMO_MODEL)
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    assert ids.shape[1] < 512
    with torch.no_grad():
        loss = float(model(ids, labels=ids).loss)
    nbytes = len(tokenizer.decode(ids[0, 1:]).encode())
    bits = loss * (ids.shape[1] - 1) / math.log(2) / nbytes
    assert f"bits per byte  {bits:.4f}" in result.stdout


@pytest.mark.parametrize(
    ("kind", "spoil", "bound"),
    [
        # A few weights that are 30 times the others widen the range of their group alone.
        ("int8", "heavy tails", 0.02),
        ("int4", "heavy tails", 0.12),
        # A column that is 50 times the others is in every row's group, but in one of each.
        ("int8", "outlier channel", 0.03),
        ("int4", "outlier channel", 0.10),
    ],
)
def test_weights_that_are_hard_to_code_stay_within_bounds(
    tmp_path: Path, kind: str, spoil: str, bound: float
) -> None:
    model = make_model(
        tmp_path / "first", "Qwen3Moe", hidden_size=256, moe_intermediate_size=256, head_dim=8
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".experts." not in name:
                continue
            if spoil == "heavy tails":
                parameter[torch.rand_like(parameter) < 0.001] *= 30
            else:
                parameter[..., 7] *= 50
    model.save_pretrained(tmp_path / "source")
    pack(tmp_path / "source", tmp_path / "packed", kind)
    errors = [e.relative for e in expert_errors(tmp_path / "packed", tmp_path / "source")]
    assert 0 < max(errors) < bound


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--text", "nothing.txt"), "nothing.txt: No such file"),
        (("--text", "empty.txt"), "empty.txt has 0 tokens"),
        (("--text", "latin.txt"), "text latin.txt: not UTF-8 text (byte 1)"),
        (("--text", "zeros.txt"), "text zeros.txt: not text (it has zero bytes)"),
        (
            ("--text", "empty.txt", "--against", str(DEMO_MODEL)),
            "is not packed, so it has no source",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    miractl: Run,
    arguments: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("")
    Path("latin.txt").write_bytes("né".encode("latin-1"))
    Path("zeros.txt").write_bytes(bytes(8))
    result = miractl("bench", "quality", str(DEMO_MODEL), *arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_another_source_is_refused(tmp_path: Path, packed: Path, miractl: Run) -> None:
    make_model(tmp_path / "other", "Qwen3Moe")
    (tmp_path / "made-up.txt").write_text(TEXT)
    result = miractl(
        *("bench", "quality", str(packed / "int4"), "--text", str(tmp_path / "made-up.txt")),
        *("--against", str(tmp_path / "other")),
    )
    assert result.exit_code == 1
    assert "was not packed from" in result.stderr
