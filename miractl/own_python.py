"""Another Python of ours: it imports what this one would, and nothing from where it is started.

Left to itself Python looks into the present folder first, whatever lies there.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_RUN = "import runpy, sys; sys.path[:] = {}; runpy.run_module({!r}, run_name='__main__')"


def _path() -> list[str]:
    return [os.path.abspath(folder) for folder in sys.path]


def command_for(module: str, *arguments: str) -> list[str]:
    """The command that runs a module."""
    return [sys.executable, "-P", "-c", _RUN.format(_path(), module), *arguments]


@contextmanager
def imports_as_here() -> Iterator[None]:
    """What multiprocessing starts meanwhile imports as this process does."""
    wanted = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(_path())}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
