"""What cannot be loaded is refused in one line, before anything large is read."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from miractl.errors import MiractlError, UsageError
from miractl.runtime.engine import Engine
from miractl.runtime.loading import Checkpoint
from miractl.runtime.transfer_queue import TransferQueue
from tests.runtime.models import load, make_model, options, rename_tensors


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def single_file(folder: Path) -> None:
    """One shard, so that tensors can be renamed."""
    model = make_model(folder, "Qwen3Moe")
    for path in folder.glob("model*"):
        path.unlink()
    model.save_pretrained(folder)


@pytest.mark.parametrize(
    ("rename", "says"),
    [
        (
            {"model.layers.1.mlp.experts.3.up_proj.weight": None},
            "model.layers.1.mlp.experts.3.up_proj.weight is missing",
        ),
        ({"model.norm.weight": None}, "model.norm.weight is missing"),
        ({"lm_head.weight": None}, "lm_head.weight is missing and tie_word_embeddings is false"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, rename: dict[str, None], says: str) -> None:
    single_file(tmp_path)
    rename_tensors(tmp_path, dict(rename))
    with pytest.raises(MiractlError) as refused:
        load(tmp_path, 12)
    assert says in refused.value.message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "experts quantised by 'gptq' cannot be read",
        ),
        ({"architectures": ["NoSuchModel"]}, "has no model class for"),
        ({"model_type": "nothing-known"}, "config.json: "),
        (
            {"moe_intermediate_size": 25},
            "is [32, 24], config.json makes it [32, 25]",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    make_model(tmp_path, "Qwen3Moe")
    edit_config(tmp_path, **changes)
    with pytest.raises(MiractlError) as refused:
        Engine.load(options(tmp_path, "100%"))
    assert says in refused.value.message
    assert "\n" not in refused.value.message


def test_a_dense_model_is_refused(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(MiractlError, match="not a Mixture-of-Experts model"):
        Engine.load(options(tmp_path, "100%"))


def test_a_budget_below_top_k_is_refused_before_loading(tmp_path: Path) -> None:
    make_model(tmp_path, "Qwen3Moe")
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()  # would fail with another message if it came to loading
    with pytest.raises(UsageError, match="one layer needs its top 2 at once"):
        Engine.load(options(tmp_path, "3%"))


@torch.no_grad()
def test_a_file_cut_while_serving_fails_the_request_and_the_next_one_works(tmp_path: Path) -> None:
    stock = make_model(tmp_path, "Qwen3Moe")
    prompt = torch.tensor([[5, 17, 80, 3]])
    engine = load(tmp_path, 6, prefetch=False)
    shards = sorted(tmp_path.glob("*.safetensors"))
    whole = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in shards}
    try:
        for path in shards:
            with path.open("r+b") as file:
                file.truncate(64)
        with pytest.raises(
            MiractlError, match=r"model-\d+-of-\d+\.safetensors now ends at byte 64, a read from"
        ):
            engine.model(prompt)
        assert engine.fault() == f"{shards[0]} was written to since it was opened"
        for path, (content, _) in whole.items():
            path.write_bytes(content)
        with pytest.raises(MiractlError, match="was written to since it was opened"):
            engine.model(prompt)
        for path, (_, changed) in whole.items():
            os.utime(path, ns=(changed, changed))
        assert engine.fault() is None
        assert (engine.model(prompt).logits - stock(prompt).logits).abs().max() <= 1e-5
        cache = engine.snapshot().cache
        assert cache.resident_bytes <= cache.budget_bytes
    finally:
        engine.close()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_page_cache_keeps_experts_where_slots_are_not_in_the_same_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    make_model(tmp_path, "Qwen3Moe")
    monkeypatch.setattr("miractl.runtime.engine.pick_device", lambda _: torch.device(device))
    asked: list[bool] = []

    class Noted(Checkpoint):
        def __init__(self, *given: Any, is_cached: bool) -> None:
            asked.append(is_cached)
            raise InterruptedError

    monkeypatch.setattr("miractl.runtime.engine.Checkpoint", Noted)
    with pytest.raises(InterruptedError):
        Engine.load(options(tmp_path, "50%"))
    assert asked == [device == "cuda"]


@torch.no_grad()
def test_a_disk_that_fails_once_fails_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = make_model(tmp_path, "Qwen3Moe")
    prompt = torch.tensor([[5, 17, 80, 3]])
    engine = load(tmp_path, 6, prefetch=False)

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    try:
        with monkeypatch.context() as failing:
            failing.setattr("os.preadv", broken)
            with pytest.raises(MiractlError, match=r"cannot read .* at byte .*: Input/output"):
                engine.model(prompt)
        assert (engine.model(prompt).logits - stock(prompt).logits).abs().max() <= 1e-5
    finally:
        engine.close()


def test_a_read_that_does_not_come_back_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, "Qwen3Moe")
    engine = load(tmp_path, 6)
    monkeypatch.setattr(TransferQueue, "stalled", 12.0)
    assert engine.fault() == f"no read from {tmp_path} has ended for 12 s"
    engine.close()


@pytest.mark.parametrize(
    ("path", "says", "hint"),
    [
        ("moe", "no experts module of qwen3_moe matches 'moe'", "'model.layers.*.mlp.experts'"),
        ("model.layers.[12].*", "leaves out model.layers.0.mlp.experts", None),
    ],
)
def test_a_path_that_does_not_fit_lists_what_would(
    tmp_path: Path, path: str, says: str, hint: str | None
) -> None:
    make_model(tmp_path, "Qwen3Moe")
    with pytest.raises(MiractlError) as refused:
        load(tmp_path, 12, expert_layer_path=path)
    assert says in refused.value.message
    assert refused.value.hint == (hint and f"--expert-layer-path {hint}")


@torch.no_grad()
def test_a_path_finds_experts_of_a_class_nobody_told_us_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = make_model(tmp_path, "Mixtral")
    monkeypatch.setattr("miractl.runtime.outline.is_experts", lambda module: False)
    with pytest.raises(MiractlError, match="mixtral has no experts that this version can manage"):
        load(tmp_path, 6)
    engine = load(tmp_path, 6, expert_layer_path="model.layers.*.mlp.experts")
    prompt = torch.tensor([[5, 17, 80, 3]])
    try:
        assert (engine.model(prompt).logits - stock(prompt).logits).abs().max() <= 1e-5
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id is 'x', no id"),
        ("generation_config.json", "[" * 10_000, "generation_config.json: "),
        ("config.json", "[" * 10_000, "config.json is not valid JSON"),
    ],
)
def test_a_broken_json_file_is_named(tmp_path: Path, name: str, content: str, says: str) -> None:
    make_model(tmp_path, "Qwen3Moe")
    (tmp_path / name).write_text(content)
    with pytest.raises(MiractlError) as refused:
        load(tmp_path, 12) if name != "config.json" else Engine.load(options(tmp_path, "100%"))
    assert says in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "has no tokenizer files"), ("{}", "no tokenizer that can be loaded")],
)
def test_a_tokenizer_that_lacks_or_is_broken_is_refused_before_loading(
    tmp_path: Path, content: str | None, says: str
) -> None:
    make_model(tmp_path, "Qwen3Moe")
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(MiractlError, match=says):
        Engine.load(replace(options(tmp_path, "100%"), with_tokenizer=True))
