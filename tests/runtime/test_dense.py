"""Attention and head as int8: what is replaced, what it computes, what the plan says of it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

from miractl.checkpoint.dense import dense_shape
from miractl.checkpoint.inspection import inspect_folder
from miractl.errors import MiractlError
from miractl.native import I8, Matrix, MatrixShape, quantize
from miractl.native.kernels import Pool
from miractl.native.matrix import Stack
from miractl.paths import DEMO_MODEL
from miractl.plan.machine import machine_for
from miractl.plan.planner import plan_for
from miractl.plan.request import PlanRequest
from miractl.probe.snapshot import take
from miractl.runtime.dense import DenseLinear, SharedInput
from miractl.runtime.engine import Engine
from miractl.runtime.packing import pack
from miractl.runtime.verify import verify
from tests.runtime.models import make_model, options

WIDE = {"hidden_size": 128, "head_dim": 32}


def load(folder: Path, dense: str, dtype: str = "float32") -> Engine:
    return Engine.load(dataclasses.replace(options(folder, "100%"), dense=dense, dtype=dtype))


def of_dense(engine: Engine) -> dict[str, DenseLinear]:
    found = engine.model.named_modules()
    return {name: module for name, module in found if isinstance(module, DenseLinear)}


@pytest.mark.parametrize(
    ("family", "tied"), [("Qwen3Moe", True), ("Qwen3Moe", False), ("GptOss", False)]
)
def test_attention_and_head_are_replaced_and_nothing_else(
    tmp_path: Path, family: str, tied: bool
) -> None:
    make_model(tmp_path, family, tie_word_embeddings=tied, **WIDE)
    exact, engine = load(tmp_path, "as-is"), load(tmp_path, "int8")
    try:
        replaced = of_dense(engine)
        assert {name.rpartition(".")[2] for name in replaced} == {
            *("q_proj", "k_proj", "v_proj", "o_proj", "lm_head")
        }
        assert len(replaced) == 3 * 4 + 1
        for name, module in replaced.items():
            x = torch.randn(2, 3, module.in_features)
            with torch.no_grad():
                expected = exact.model.get_submodule(name)(x)
                got = module(x)
                rows = torch.stack([module(row) for row in x.view(6, 1, -1)]).view(got.shape)
            assert 0 < (got - expected).norm() / expected.norm() < 0.01
            assert torch.equal(got, rows)  # no row depends on the others
        ids = torch.arange(exact.model.config.vocab_size)
        own, stock = (each.model.get_input_embeddings() for each in (engine, exact))
        assert torch.equal(own(ids), stock(ids))
    finally:
        exact.close()
        engine.close()


def test_floats_of_what_is_int8_take_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while loading, not even where the model computes in another type than is stored."""
    make_model(tmp_path / "first", "Qwen3Moe", **WIDE).to(torch.bfloat16).save_pretrained(
        tmp_path / "source"
    )
    from miractl.runtime.dense import DenseBlocks

    taken: list[int] = []
    install = DenseBlocks.install

    def counted(self: DenseBlocks, model: torch.nn.Module) -> None:
        weights = [model.get_parameter(name) for name in self.shapes]
        taken.extend(weight.untyped_storage().nbytes() for weight in weights)
        install(self, model)  # type: ignore[arg-type]

    monkeypatch.setattr(DenseBlocks, "install", counted)
    load(tmp_path / "source", "int8").close()
    assert taken == [4] * 13


def test_the_demo_model_loses_next_to_nothing() -> None:
    ids = torch.arange(3, 400)[None] % 500
    found = []
    for dense in ("as-is", "int8"):
        engine = load(DEMO_MODEL, dense)
        with torch.no_grad():
            logits = engine.model(ids).logits[0, :-1]
        found.append(float(torch.nn.functional.cross_entropy(logits, ids[0, 1:])))
        engine.close()
    assert 0 < abs(found[1] / found[0] - 1) < 0.002


def test_the_compute_type_is_kept(tmp_path: Path) -> None:
    make_model(tmp_path, "Qwen3Moe", **WIDE)
    engine = load(tmp_path, "int8", "bfloat16")
    with torch.no_grad():
        assert engine.model(torch.tensor([[5, 6, 7]])).logits.dtype == torch.bfloat16
    engine.close()


def test_without_the_kernels_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, "Qwen3Moe")
    monkeypatch.setattr("miractl.runtime.engine.why_not", lambda: "no C compiler")
    with pytest.raises(MiractlError, match="--dense int8 is for the CPU kernels: no C compiler"):
        load(tmp_path, "int8")


@pytest.mark.parametrize(
    ("name", "shape", "columns"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (256, 128), 128),
        ("self_attn.o_proj.weight", (256, 96), 32),
        ("lm_head.weight", (1000, 64), 64),
        ("model.layers.0.self_attn.q_proj.bias", (256,), None),
        ("model.layers.0.mlp.gate.weight", (128, 2048), None),
        ("model.layers.0.mlp.shared_expert.up_proj.weight", (512, 2048), None),
        ("model.embed_tokens.weight", (1000, 64), None),
        ("self_attn.k_proj.weight", (8, 128), None),  # small
        ("self_attn.q_proj.weight", (256, 100), None),
        ("self_attn.q_proj.weight", (252, 128), None),
    ],
)
def test_the_rule(name: str, shape: tuple[int, ...], columns: int | None) -> None:
    found = dense_shape(name, shape)
    assert (found and found.format.group) == columns


@pytest.mark.parametrize("tied", [True, False])
def test_the_plan_counts_what_the_engine_has(tmp_path: Path, tied: bool) -> None:
    make_model(tmp_path, "Qwen3Moe", tie_word_embeddings=tied, **WIDE)
    geometry = inspect_folder(tmp_path).geometry
    assert geometry is not None
    machine = machine_for(take(), device="cpu")
    planned = plan_for(geometry, machine, PlanRequest(dense=True)).needs
    engine = load(tmp_path, "int8")
    blocks = sum(module.block.nbytes for module in of_dense(engine).values())
    others = sum(p.numel() * 4 for p in engine.model.parameters())
    engine.close()
    assert planned.dense()[1] == blocks
    assert planned.weights().bytes == others + blocks


def test_plan_says_so(tmp_path: Path, miractl: Callable[..., Result]) -> None:
    make_model(tmp_path, "Qwen3Moe", **WIDE)
    told = miractl("plan", str(tmp_path), "--device", "cpu", "--dense", "int8", "--json")
    weights = [
        line for line in json.loads(told.stdout)["ledgers"][0]["lines"] if line["name"] == "weights"
    ]
    assert "as int8" in weights[0]["formula"]


def logits(folder: Path, dense: str = "as-is") -> torch.Tensor:
    engine = load(folder, dense)
    with torch.no_grad():
        result: torch.Tensor = engine.model(torch.arange(4, 40)[None]).logits
    engine.close()
    return result


@pytest.mark.parametrize("tied", [True, False])
def test_packed_it_gives_the_bits_of_quantising_at_load(
    tmp_path: Path, miractl: Callable[..., Result], tied: bool
) -> None:
    source, packed = tmp_path / "source", tmp_path / "packed"
    make_model(source, "Qwen3Moe", tie_word_embeddings=tied, **WIDE)
    result = miractl("pack", str(source), "-o", str(packed), "--dense", "int8")
    assert result.exit_code == 0, result.output
    assert "attention and head as int8" in result.stdout
    assert torch.equal(logits(packed), logits(source, "int8"))
    found = miractl("inspect", str(packed), "--verify-hashes")
    assert found.exit_code == 0, found.output
    assert "lm_head" not in found.stdout
    assert "every byte is what was packed" in found.stdout
    engine = load(packed, "as-is")
    geometry = inspect_folder(packed).geometry
    assert geometry is not None
    needs = plan_for(geometry, machine_for(take(), device="cpu"), PlanRequest()).needs
    others = sum(p.numel() * 4 for p in engine.model.parameters())
    blocks = sum(module.block.nbytes for module in of_dense(engine).values())
    engine.close()
    assert needs.weights().bytes == others + blocks


@pytest.mark.parametrize("tied", [True, False])
def test_packed_and_without_the_kernels_the_blocks_become_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    make_model(tmp_path / "source", "Qwen3Moe", tie_word_embeddings=tied, **WIDE)
    pack(tmp_path / "source", tmp_path / "packed", "as-is", dense="int8")
    monkeypatch.setattr("miractl.runtime.engine.why_not", lambda: "no C compiler")
    exact, engine = load(tmp_path / "source", "as-is"), load(tmp_path / "packed", "as-is")
    assert of_dense(engine) == {}
    for name in ("model.layers.1.self_attn.o_proj", "lm_head"):
        given, got = (e.model.get_submodule(name).weight.detach() for e in (exact, engine))
        error = float((got - given).norm() / given.norm())
        assert 0 <= error < 0.01
        assert (error == 0) == (tied and name == "lm_head")
    exact.close()
    engine.close()


def test_the_proof_passes_with_both(tmp_path: Path) -> None:
    make_model(tmp_path / "source", "Qwen3Moe", moe_intermediate_size=64, **WIDE)
    pack(tmp_path / "source", tmp_path / "packed", "int4", dense="int8")
    assert all(case.passed for case in verify(options(tmp_path / "packed", None)))


def test_the_proof_passes_with_dense_alone(tmp_path: Path) -> None:
    make_model(tmp_path / "source", "Qwen3Moe", **WIDE)
    pack(tmp_path / "source", tmp_path / "packed", "as-is", dense="int8")
    cases = list(verify(options(tmp_path / "packed", None)))
    assert all(case.passed for case in cases)
    assert cases[0].limit == 1e-5
    assert cases[-1].difference > 0.01


class Siblings:
    """Modules under one parent, and which of them each call of the library computes."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, rows: tuple[int, ...], columns: int
    ) -> None:
        self.calls: list[list[int]] = []
        multiply = Stack.multiply_at

        def noted(stack: Stack, *args: int | Pool | None) -> None:
            self.calls.append(stack.rows)
            multiply(stack, *args)  # type: ignore[arg-type]

        shared, alone = SharedInput(None), SharedInput(Pool(2))
        shapes = [MatrixShape(I8, count, columns) for count in rows]
        blocks = [quantize(torch.randn(s.rows, columns).numpy(), s) for s in shapes]
        matrices = [Matrix(block, shape) for block, shape in zip(blocks, shapes, strict=True)]
        bias = torch.randn(rows[0])
        self.modules = [DenseLinear(m, None if i else bias, shared) for i, m in enumerate(matrices)]
        self._reference = [
            DenseLinear(m, mod.bias, alone) for m, mod in zip(matrices, self.modules, strict=True)
        ]
        monkeypatch.setattr(Stack, "multiply_at", noted)

    def check(self, number: int, x: torch.Tensor) -> None:
        """What a module computes is what it computes alone."""
        found = self.modules[number](x)
        mine, self.calls = self.calls, []
        expected = self._reference[number](x.clone())
        self.calls = mine
        assert torch.equal(found, expected)
        assert found.is_contiguous()


def test_modules_called_with_one_tensor_share_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    siblings = Siblings(monkeypatch, (16, 8, 24, 128), 128)
    for tokens in (3, 1, 5):
        x, y = torch.randn(1, tokens, 128), torch.randn(1, tokens, 128)
        for number in (0, 1, 2):
            siblings.check(number, x)
        siblings.check(3, y)
    each = [[16], [8], [24], [128]]
    assert siblings.calls == [*each, [16, 8, 24], [128], [16, 8, 24], [128]]


def test_who_is_called_otherwise_is_computed_alone_again(monkeypatch: pytest.MonkeyPatch) -> None:
    siblings = Siblings(monkeypatch, (16, 8), 128)
    x = torch.randn(2, 128)
    for number in (0, 1):
        siblings.check(number, x)
    siblings.calls.clear()
    for _ in range(2):
        siblings.check(0, torch.randn(2, 128))
    assert siblings.calls == [[16, 8], [16]]


def test_a_tensor_that_was_written_to_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    siblings = Siblings(monkeypatch, (16, 8), 128)
    x = torch.randn(2, 128)
    for _ in range(2):
        siblings.check(0, x)
        siblings.check(1, x)
    siblings.check(0, x)
    x.mul_(2)
    siblings.check(1, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inference", [True, False])
def test_views_types_and_inference_mode(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, inference: bool
) -> None:
    siblings = Siblings(monkeypatch, (16, 8), 128)
    with torch.inference_mode(inference):
        for shape in ((128,), (1, 128), (2, 3, 128), (0, 128)):
            x = torch.randn(*shape[:-1], 256).to(dtype)[..., ::2]
            for _ in range(2):
                siblings.check(0, x)
                siblings.check(1, x)
    with pytest.raises(ValueError, match=r"expected \[..., 128\]"):
        siblings.modules[0](torch.randn(2, 64))


def test_only_like_matrices_are_stacked() -> None:
    shapes = MatrixShape(I8, 8, 128), MatrixShape(I8, 8, 256)
    matrices = [Matrix(quantize(torch.randn(s.rows, s.columns).numpy(), s), s) for s in shapes]
    with pytest.raises(ValueError, match="one format and one width"):
        Stack(matrices)
