"""The wheel: everything that a running miractl needs is in it, and found from there."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a copy of the sources, so that the checkout stays as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        shutil.copy(ROOT / name, folder / name)
    for name in ("miractl", "profiles"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder / "dist"), str(folder)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    (built,) = (folder / "dist").glob("*.whl")
    return built


def test_wheel_has_code_profiles_model_and_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    profiles = {f"miractl/_profiles/{path.name}" for path in (ROOT / "profiles").glob("*.yaml")}
    code = {str(path.relative_to(ROOT)) for path in (ROOT / "miractl").rglob("*.py")}
    model = {
        str(p.relative_to(ROOT)) for p in (ROOT / "miractl/demo/model").glob("*") if p.is_file()
    }
    assert profiles
    assert profiles | code | model | {"miractl/demo/trace.npz"} <= names
    inside = {name for name in names if name.startswith("miractl/")}
    assert {name.split("/")[0] for name in names - inside} == {"miractl-0.1.0.dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_unpacked_wheel_finds_its_profiles(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    run = subprocess.run(
        [sys.executable, "-m", "miractl", "profiles", "show", "a10"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Mira article 3.2, A10" in run.stdout


def test_constraints_pin_every_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pinned = {name.lower().replace("_", "-") for name in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {line.split(">")[0].split("<")[0].lower() for line in wanted}
    assert names <= pinned
    assert pins["torch"] == "2.13.0"
