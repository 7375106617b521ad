"""Finding the library, and saying why there is none."""

from pathlib import Path

import pytest

from miractl.errors import MiractlError
from miractl.native import ExpertShape, Format, Layer, MatrixShape, library
from miractl.native.kernels import _expert
from miractl.native.matrix import matrix_struct
from tests.native.conftest import FORMATS


def test_without_a_library_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_loaded", lambda: library._load(tmp_path / "libmiractl.so"))
    assert not library.available()
    assert library.why_not() == "this miractl was built without its CPU kernels (no C compiler)"
    with pytest.raises(MiractlError, match="without its CPU kernels") as error:
        Layer(ExpertShape(Format("i8", 32), 32, 32), 1)
    assert "gcc or clang" in (error.value.hint or "")


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "libmiractl.so").write_text("not a library")
    loaded = library._load(tmp_path / "libmiractl.so")
    assert loaded.library is None
    assert "do not load" in (loaded.reason or "")


@pytest.mark.usefixtures("kernels")
def test_another_interface_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    abi = library.ABI
    monkeypatch.setattr(library, "ABI", 77)
    assert f"interface {abi}, miractl needs 77" in (library._load(library.PATH).reason or "")


@pytest.mark.usefixtures("kernels")
def test_kernels_that_fail_their_test_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    before = library.isa()
    monkeypatch.setattr(library, "SELF_TEST", library.SELF_TEST ^ 1)
    loaded = library._load(library.PATH)
    library.library().mira_isa_use(library.ISAS.index(before))
    assert loaded.library is None
    assert loaded.failed == tuple(library.supported_isas())
    assert loaded.reason == "the CPU kernels fail their self-test"


@pytest.mark.usefixtures("kernels")
def test_the_best_set_that_passes_is_used() -> None:
    passed = [isa for isa in library.supported_isas() if isa not in library.failed_isas()]
    assert library.isa() == passed[0]
    with pytest.raises(ValueError, match="sse9"), library.using_isa("sse9"):
        pass


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("format_", FORMATS, ids=lambda f: f"{f.name}-{f.group}")
def test_both_sides_count_the_same_bytes(format_: Format) -> None:
    import ctypes

    for rows, columns in ((8, 128), (1536, 2048), (24, 384)):
        shape = MatrixShape(format_, rows, columns)
        assert (
            library.library().mira_matrix_bytes(ctypes.byref(matrix_struct(shape))) == shape.nbytes
        )
    for gated in (True, False):
        for biased in (True, False):
            expert = ExpertShape(format_, 384, 128, gated=gated, biased=biased)
            counted = library.library().mira_expert_bytes(ctypes.byref(_expert(expert)))
            assert counted == expert.nbytes


def test_known_sizes() -> None:
    """An expert of Qwen3-30B-A3B: 4.53 bits a weight, whole pages without padding."""
    shape = ExpertShape(Format("i4k", 32), 2048, 768)
    assert shape.nbytes == shape.record_bytes == 655 * 4096
    assert ExpertShape(Format("i8", 64), 2880, 2880, biased=True).record_bytes % 4096 == 0
