"""The architecture, checked: who imports whom, and what a quick command may not load."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from miractl.cli.main import COMMANDS

PACKAGE = Path(__file__).parent.parent / "miractl"
# Top to bottom: a layer imports only what stands below it.
LAYERS = (
    *("cli", "top", "server", "integrations", "runtime", "simulate", "policy", "plan"),
    *("checkpoint", "doctor", "probe", "telemetry", "native"),
)
# Outside libraries at home in few layers. `demo` is the training script, imported by nobody.
HOMES = {
    "torch": {"runtime", "server", "integrations", "demo"},
    "transformers": {"runtime", "server", "integrations", "demo"},
    "textual": {"top"},
    "click": {"cli"},
    "pynvml": {"probe"},
    "fastapi": {"server", "integrations"},
}
HEAVY = ("torch", "transformers", "textual")
MODULES = sorted(path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Full names of what a module imports, anywhere in it, from-imports down to the name."""
    for node in ast.walk(ast.parse((PACKAGE.parent / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(module: str) -> str:
    """`cli` of `miractl.cli.main`, `base` of the single modules at the top of the package."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "base"


def rank(name: str) -> int:
    return len(LAYERS) if name == "base" else LAYERS.index(name)


def test_every_folder_is_a_known_layer() -> None:
    folders = {path.parts[1] for path in MODULES if len(path.parts) > 2}
    assert folders - set(LAYERS) == {"demo"}


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_point_down(path: Path) -> None:
    if path.name == "__main__.py":
        return  # the door to cli/
    own = layer(".".join(path.with_suffix("").parts))
    for name in imports(path):
        top = name.split(".")[0]
        assert own in HOMES.get(top, {own}), f"{own} imports {top}"
        if top == "miractl" and own != "demo":
            assert rank(layer(name)) >= rank(own), f"{own} imports {name}"


def loaded_after(code: str) -> set[str]:
    """Modules in memory after running `code`, which may exit."""
    code = (
        "import sys, io\nsys.stdout = io.StringIO()\n"
        f"try:\n    {code}\nexcept SystemExit:\n    pass\n"
        "sys.stdout = sys.__stdout__\nprint(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_help_loads_click_and_the_package_alone() -> None:
    bare = loaded_after("import click")
    help_page = loaded_after("from miractl.cli.main import cli; cli.main(['--help'])")
    outside = {name.split(".")[0] for name in help_page - bare} - set(sys.stdlib_module_names)
    assert outside == {"miractl", "click"}
    ours = {name for name in help_page if name.startswith("miractl")}
    assert ours == {"miractl", "miractl.cli", "miractl.cli.main", "miractl.errors"}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_commands_is_light(name: str) -> None:
    loaded = loaded_after(f"from miractl.cli.main import cli; cli.main(['{name}', '--help'])")
    assert loaded.isdisjoint(HEAVY)
    assert f"miractl.cli.{name}" in loaded


def test_deciding_a_run_once_more_loads_no_engine() -> None:
    loaded = loaded_after("import miractl.cli.replay_recorded, miractl.runtime.rerun")
    assert loaded.isdisjoint(HEAVY)
