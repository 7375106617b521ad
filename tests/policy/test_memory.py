"""What is kept from one run to the next, and for whom it is not."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from miractl.errors import MiractlError, UsageError
from miractl.policy.memory import Identity, Memory, read_memory, writable, write_memory

MODEL = Identity("qwen3_moe", (1, 3), 4, 2, "0123")
HEAT = np.linspace(0, 1, 8).reshape(2, 4)
TABLES = {"weights": np.arange(3, dtype=np.float32)}
GUESSES = {"weights": np.arange(4.0), "markov.by_layer": np.ones((2, 2), np.float32)}
MEMORY = Memory(HEAT, np.arange(8).reshape(2, 4), TABLES, GUESSES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_memory(tmp_path / "a10.npz", MODEL, MEMORY)
    return tmp_path / "a10.npz"


def test_what_was_kept_comes_back(path: Path) -> None:
    found = read_memory(path, MODEL)
    assert found is not None
    np.testing.assert_array_equal(found.heat, MEMORY.heat)
    np.testing.assert_array_equal(found.activations, MEMORY.activations)
    for ours, kept in ((found.tables, TABLES), (found.guesses, GUESSES)):
        assert ours.keys() == kept.keys()
        for name, table in kept.items():
            np.testing.assert_array_equal(ours[name], table)
    assert [each.name for each in path.parent.iterdir()] == ["a10.npz"]


def test_the_first_start_has_no_memory(tmp_path: Path) -> None:
    assert read_memory(tmp_path / "new.npz", MODEL) is None


@pytest.mark.parametrize(
    "change",
    [{"family": "olmoe"}, {"layers": (1, 2)}, {"experts": 5}, {"top_k": 1}, {"digest": "4567"}],
)
def test_another_model_is_refused(path: Path, change: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="belongs to another model") as caught:
        read_memory(path, dataclasses.replace(MODEL, **change))
    assert caught.value.hint is not None


def test_a_file_that_is_none_of_ours_is_refused(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    for damaged in (whole[:200], whole[:-30], b"", b"heat", whole[:300] + b"x" + whole[301:]):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="warm heat"):
            read_memory(path, MODEL)
    np.savez(path, heat=HEAT)
    with pytest.raises(UsageError, match="not written by miractl"):
        read_memory(path, MODEL)
    with pytest.raises(UsageError, match="Is a directory"):
        read_memory(tmp_path, MODEL)


def test_numbers_that_are_none_are_refused(path: Path) -> None:
    nan = {"weights": np.full(2, np.nan)}
    for change in ({"heat": HEAT * np.nan}, {"tables": nan}, {"guesses": nan}):
        write_memory(path, MODEL, dataclasses.replace(MEMORY, **change))
        with pytest.raises(UsageError, match="damaged"):
            read_memory(path, MODEL)


@pytest.mark.parametrize("wrong", [-1, 2**60, 0.5])
def test_counts_that_no_run_has_are_refused(path: Path, wrong: float) -> None:
    counts = MEMORY.activations.astype(type(wrong))
    counts[1, 2] = wrong
    write_memory(path, MODEL, dataclasses.replace(MEMORY, activations=counts))
    with pytest.raises(UsageError, match=r"damaged: .*tokens of an expert"):
        read_memory(path, MODEL)


def test_a_memory_says_of_how_many_tokens_it_is() -> None:
    assert MEMORY.describe(top_k=2) == "heat, counts and what was learned of 3 tokens"
    one = Memory(HEAT, np.ones((2, 4), np.int64))
    assert one.describe(top_k=4) == "heat and counts of 1 token"


def test_other_versions_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miractl.policy.memory.VERSION", 2)
    with pytest.raises(UsageError, match="version 1, this miractl reads 2"):
        read_memory(path, MODEL)


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MiractlError, match=r"cannot write .*: No such file"):
        write_memory(tmp_path / "none" / "a.npz", MODEL, MEMORY)


def test_a_link_stays_one_to_the_new_memory(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.npz"
    link.symlink_to(path)
    before = path.read_bytes()
    write_memory(link, MODEL, dataclasses.replace(MEMORY, tables={}))
    assert link.is_symlink()
    assert path.read_bytes() != before


def export(path: Path, rows: list[tuple[int, int]]) -> Path:
    lines = ["timestamp,layer,expert,heat,resident,activations"]
    lines += [f"x,{layer},{expert},0.25,1,{10 * layer + expert}" for layer, expert in rows]
    path.write_text("\n".join(lines))
    return path


def test_a_heat_export_is_read_and_never_written(tmp_path: Path) -> None:
    path = export(tmp_path / "heat.csv", [(layer, e) for layer in (1, 3) for e in range(4)])
    found = read_memory(path, MODEL)
    assert found is not None
    assert found.heat.tolist() == [[0.25] * 4] * 2
    assert found.activations.tolist() == [[10, 11, 12, 13], [30, 31, 32, 33]]
    assert not writable(path)
    assert writable(tmp_path / "a.npz")


@pytest.mark.parametrize("rows", [[(1, 0)], [(2, 0)], [(1, 9)]])
def test_an_export_of_another_model_is_refused(tmp_path: Path, rows: list[tuple[int, int]]) -> None:
    with pytest.raises(UsageError, match="warm heat"):
        read_memory(export(tmp_path / "heat.csv", rows), MODEL)
    path = export(tmp_path / "heat.csv", [(layer, e) for layer in (1, 3) for e in range(4)])
    for wrong in ("-7", "1" * 18, "1" * 30):
        path.write_text(path.read_text().replace(",33", f",{wrong}"))
        with pytest.raises(UsageError, match="warm heat"):
            read_memory(path, MODEL)
        path.write_text(path.read_text().replace(f",{wrong}", ",33"))
    with pytest.raises(UsageError, match="No such file"):
        read_memory(tmp_path / "none.csv", MODEL)
