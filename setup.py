"""What pyproject.toml cannot say: profiles/ lies beside the package and becomes part of it."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["miractl", "miractl.*"]), "miractl._profiles"],
    package_dir={"miractl._profiles": "profiles"},
)
