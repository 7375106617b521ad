"""What pyproject.toml cannot say: where profiles/ belongs, and how the CPU kernels are built.

The kernels are a plain shared library that ctypes loads, so one wheel a platform serves every
Python. Where no C compiler works the package is built without it, for any platform, and says so
when it runs; with MIRACTL_REQUIRE_NATIVE=1 the build fails instead.
"""

import os
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = Path("miractl/native/src")
REQUIRED = os.environ.get("MIRACTL_REQUIRE_NATIVE", "") not in ("", "0")

# -ffp-contract=off: a product and a sum are rounded apart, unless the source says fma.
# -fno-trapping-math: nobody asks for exception flags, so comparisons may be vectorised.
# -fno-math-errno: nor for errno, so a square root is an instruction.
# -Wno-psabi: vectors are passed between inlined functions only.
KERNELS = Extension(
    "miractl.native.libmiractl",
    sources=sorted(str(path) for path in SOURCES.glob("*.c")),
    depends=sorted(str(path) for path in SOURCES.glob("*.h")),
    extra_compile_args=[
        *("-std=c11", "-O3", "-g0", "-ffp-contract=off", "-fno-trapping-math"),
        *("-fno-math-errno", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi", "-pthread"),
    ],
    extra_link_args=["-pthread"],
    libraries=["m"],
    optional=not REQUIRED,
)


class BuildLibrary(build_ext):
    """A library with a plain name, without a Python module's entry point."""

    def get_ext_filename(self, fullname: str) -> str:
        """`miractl/native/libmiractl.so`, whatever the Python."""
        return fullname.replace(".", os.sep) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """The source marks what it exports."""
        return ext.export_symbols

    def run(self) -> None:
        """Build; forget the library if that failed and may fail."""
        super().run()
        built = Path(self.get_ext_fullpath(KERNELS.name))
        if not built.exists():
            self.distribution.ext_modules = []


class PlatformWheel(bdist_wheel):
    """A wheel for every Python 3 of one platform, or of all without the library."""

    def run(self) -> None:
        """Build first: only then is known what the wheel will hold."""
        self.run_command("build")
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        """`py3-none-linux_x86_64` or `py3-none-any`."""
        return "py3", "none", super().get_tag()[2]


setup(
    packages=[*find_packages(include=["miractl", "miractl.*"]), "miractl._profiles"],
    package_dir={"miractl._profiles": "profiles"},
    ext_modules=[KERNELS],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
