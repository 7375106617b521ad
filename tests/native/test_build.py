"""Building the package: one wheel a platform, and one for all without a compiler."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """What the library is built from, beside an otherwise empty package."""
    folder = tmp_path / "sources"
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        folder.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "profiles").mkdir()
    shutil.copytree(
        ROOT / "miractl/native", folder / "miractl/native", ignore=shutil.ignore_patterns("*.so")
    )
    shutil.copy(ROOT / "miractl/__init__.py", folder / "miractl/__init__.py")
    return folder


def build(folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {k: v for k, v in os.environ.items() if k != "MIRACTL_REQUIRE_NATIVE"}
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    return subprocess.run(
        [*command, "--wheel-dir", str(folder / "dist"), str(folder)],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_compiler_the_wheel_is_for_all_platforms(sources: Path) -> None:
    done = build(sources, CC="false")
    assert done.returncode == 0, done.stderr
    (wheel,) = (sources / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "miractl/native/library.py" in names
    assert not [name for name in names if name.endswith((".so", ".c", ".h"))]


def test_a_required_library_that_does_not_build_is_a_failure(sources: Path) -> None:
    done = build(sources, CC="false", MIRACTL_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert not (sources / "dist").exists() or not list((sources / "dist").iterdir())


@pytest.mark.skipif(not shutil.which("cc") and not shutil.which("gcc"), reason="no C compiler")
def test_with_a_compiler_the_wheel_is_for_every_python(sources: Path) -> None:
    done = build(sources, MIRACTL_REQUIRE_NATIVE="1")
    assert done.returncode == 0, done.stderr
    (wheel,) = (sources / "dist").iterdir()
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    libraries = [n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".so")]
    assert libraries == ["miractl/native/libmiractl.so"]
