# SPDX-License-Identifier: BSD-3-Clause
"""The sources of the extension: all files in its layers' folders."""

from __future__ import annotations

from pathlib import Path

from toolchain import ToolchainError

# Bottom layer first; their folders may have folders.
LAYERS = ("cuda", "array", "comm", "python")


def _found(root: Path, folder: str, pattern: str) -> list[str]:
    # From a letter on: editors keep files of their own beside.
    paths = (root / "src" / folder).rglob(f"[a-z]{pattern}")
    names = sorted(path.relative_to(root).as_posix() for path in paths)
    if not names:
        raise ToolchainError(
            f"src/{folder} has no file {pattern}: take a complete source tree"
        )
    return names


def c_files(root: Path) -> list[str]:
    """Every C file, relative to the root, layer by layer."""
    return [name for layer in LAYERS for name in _found(root, layer, "*.c")]


def below_mpi(root: Path) -> list[str]:
    """Those of the layers that know nothing of MPI."""
    return [
        name for layer in LAYERS[:2] for name in _found(root, layer, "*.c")
    ]


def above_mpi(root: Path) -> list[str]:
    """Those that are compiled for each ABI of MPI."""
    return [
        name for layer in LAYERS[2:] for name in _found(root, layer, "*.c")
    ]


def toys(root: Path) -> list[str]:
    """What tests add to the core, compiled for each ABI of MPI as well."""
    paths = (root / "tests" / "toys").glob("*.c")
    return sorted(path.relative_to(root).as_posix() for path in paths)


def kernels(root: Path) -> list[str]:
    """Every file of kernels, relative to the root."""
    return _found(root, "kernels", "*.cu")
