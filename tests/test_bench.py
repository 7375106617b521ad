"""`miractl bench`: what is measured, and that it is said in tables and in JSON."""

import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from click.testing import Result

from miractl.cli.prompts import read_prompts
from miractl.errors import UsageError
from miractl.probe import disk_rate, disk_reads
from miractl.probe.direct_file import PAGE, DirectFile
from miractl.probe.spread import Spread
from miractl.runtime import link, speed
from tests.runtime.models import load, make_model
from tests.server.tiny import tiny_tokenizer

Run = Callable[..., Result]


def test_spread() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 10.0]) == Spread(2.5, 1.0, 10.0)
    with pytest.raises(ValueError, match="no measurements"):
        Spread.of([])


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(disk_rate, "LARGE", 0)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "experts.bin").write_bytes(os.urandom(16 * PAGE))
    return folder


def test_records_are_read_once_in_a_round(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []
    read = DirectFile.read_into

    def note(self: DirectFile, views: list[memoryview], start: int) -> None:
        starts.append(start)
        read(self, views, start)

    monkeypatch.setattr(DirectFile, "read_into", note)
    monkeypatch.setattr(disk_reads, "ROUND", 12 * PAGE)
    file = DirectFile(records / "experts.bin")
    found = disk_reads.measure(file, 2 * PAGE, [1, 3], 2)
    file.close()
    assert [(rate.order, rate.depth, len(rate.rates)) for rate in found] == [
        *(("sequential", 1, 2), ("sequential", 3, 2), ("random", 1, 2), ("random", 3, 2)),
    ]
    rounds = [starts[i : i + 6] for i in range(0, len(starts), 6)]
    assert len(rounds) == 8
    assert all(len(set(places)) == 6 for places in rounds)
    for places in (rounds[0], rounds[4]):
        assert [b - a for a, b in pairwise(places)] == [2 * PAGE] * 5


@pytest.mark.parametrize("record", [PAGE + 1, 8 * PAGE])
def test_records_that_cannot_be_measured(records: Path, record: int) -> None:
    file = DirectFile(records / "experts.bin")
    with pytest.raises(UsageError, match="does not hold 4 records"):
        disk_reads.measure(file, record, [1], 1)
    file.close()


def test_disk(records: Path, miractl: Run) -> None:
    arguments = ("bench", "disk", str(records), "--record", "4KiB", "--depth", "2", "--repeat", "3")
    found = json.loads(miractl(*arguments, "--json").stdout)
    assert found["schema"] == "miractl.bench.disk/1"
    assert (found["record_bytes"], found["file_bytes"]) == (PAGE, 16 * PAGE)
    assert [(row["order"], row["depth"]) for row in found["reads"]] == [
        *(("sequential", 2), ("random", 2))
    ]
    assert found["reads"][0]["of_sequential"] == 1
    assert all(row["bytes_per_second"]["low"] > 0 for row in found["reads"])
    lines = miractl(*arguments).stdout.splitlines()
    assert lines[0].startswith("records of 4 KiB from ")
    assert [line.split()[:2] for line in lines[2:]] == [["sequential", "2"], ["random", "2"]]


def test_disk_of_nothing(miractl: Run) -> None:
    result = miractl("bench", "disk", "/no/such/folder")
    assert result.exit_code == 2
    assert "no file or folder '/no/such/folder'" in result.stderr


def test_link_without_a_gpu_says_so(miractl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SOURCE", 2**16), ("ROUND", 2**17), ("SIZES", (2**12, 2**16))):
        monkeypatch.setattr(link, name, value)
    text = miractl("bench", "link", "--device", "cpu", "--repeat", "2").stdout
    assert text.startswith("no GPU: copies within host memory, no link is crossed\n")
    found = json.loads(miractl("bench", "link", "--device", "cpu", "--json").stdout)
    assert found["crosses_a_link"] is False
    assert [row["bytes"] for row in found["copies"]] == [2**12, 2**16]


def test_contenders_take_turns_on_the_same_prompts_and_the_first_round_is_not_counted(
    tmp_path: Path,
) -> None:
    stock = make_model(tmp_path, "Qwen3Moe")
    engine = load(tmp_path, 6, prefetch=False)
    prompts: dict[str, list[torch.Tensor]] = {"ours": [], "stock": []}
    for name, model in (("ours", engine.model), ("stock", stock)):

        def note(_: object, __: object, kept: dict[str, torch.Tensor], to: str = name) -> None:
            prompts[to].append(kept["input_ids"])

        model.register_forward_pre_hook(note, with_kwargs=True)
    contenders = {
        "ours": speed.Contender(engine.model, engine.snapshot),
        "stock": speed.Contender(stock),
    }
    rounds = speed.random_prompts(engine.model, 5, 3)
    speed.measure(contenders, rounds, 3, lambda *_: None)
    engine.close()
    assert all(map(torch.equal, prompts["ours"], prompts["stock"]))
    assert [ids.shape[1] for ids in prompts["ours"]] == [5, 1, 1, 1] * 3
    ours, theirs = contenders["ours"], contenders["stock"]
    assert [lap.tokens for lap in ours.prefill] == [5, 5]
    assert [lap.tokens for lap in theirs.decode] == [3, 3]
    assert theirs.cache_use is None
    assert ours.cache_use is not None
    assert 0 < (ours.cache_use.hit_rate or 0) < 1
    assert ours.cache_use.bytes_per_token > 0


def test_decode(tmp_path: Path, miractl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    make_model(tmp_path / "small", "Qwen3Moe")
    arguments = (
        "bench",
        "decode",
        str(tmp_path / "small"),
        "--prompt-tokens",
        "4",
        "--tokens",
        "2",
    )
    arguments = (*arguments, "--repeat", "2", "--threads", "1", "--against", "transformers")
    found = json.loads(miractl(*arguments, "--json").stdout)
    assert found["schema"] == "miractl.bench.decode/1"
    assert found["threads"] == 1
    assert set(found["contenders"]) == {"miractl", "transformers"}
    decode = found["contenders"]["miractl"]["decode"]
    assert 0 < decode["tokens_per_second"]["low"] <= decode["tokens_per_second"]["median"]
    assert found["contenders"]["transformers"]["cache"] is None
    text = miractl(*arguments).stdout
    assert text.startswith("small on cpu in float32, 1 thread, sets x ways 1 x ")
    assert "times transformers: prefill " in text


def test_prompts_are_the_starts_of_texts_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("to be or not\n\n\n\n  the cat\nsat\n", encoding="utf-8")
    texts = read_prompts(path)
    assert texts == ("to be or not", "  the cat\nsat")
    tokenizer = tiny_tokenizer()
    found = speed.text_prompts(tokenizer, texts, 3, 3)
    assert [ids.shape[0] for ids in found] == [1, 1, 1]
    assert all(0 < ids.shape[1] <= 3 for ids in found)
    whole = tokenizer.decode(speed.text_prompts(tokenizer, texts, 100, 2)[1][0])
    assert whole == texts[1]
    assert torch.equal(found[0], found[2])


def test_decode_of_nothing(miractl: Run) -> None:
    result = miractl("bench", "decode", "/no/such/folder")
    assert result.exit_code == 2
    assert "no model folder '/no/such/folder'" in result.stderr
