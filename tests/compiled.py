# SPDX-License-Identifier: BSD-3-Clause
"""C that tests compile: parts of the tree, and libraries that call MPI."""

import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

import ranks  # finds build_tools
import toolchain
import warpmpi as wm


def includes():
    """The words by which C finds the tree's headers and CUDA's."""
    try:
        folders = toolchain.find_cuda().include_dirs
    except toolchain.ToolchainError as error:
        pytest.skip(str(error))
    return [f"-I{path}" for path in (ranks.ROOT / "src", *folders)]


def parts(made, *sources, words=(), mpi=False, kernels=False):
    """A program, or what `words` make of it, without Python; its path.

    sources: patterns of files, from the root. kernels: with the package's.
    """
    compiler = toolchain.find_mpicc() if mpi else [shutil.which("cc")]
    if compiler in (None, [None]):
        pytest.skip("no C compiler")
    command = [*compiler, "-g", "-std=c11", "-pthread", *words, *includes()]
    for source in sources:
        command += sorted(map(str, ranks.ROOT.glob(source)))
    if kernels:
        path = Path(wm._core.__file__).with_name("_kernels.so")
        command += [str(path), f"-Wl,-rpath,{path.parent}"]
    subprocess.run([*command, "-o", str(made), "-ldl"], check=True)
    return str(made)


def library(folder, text, *words):
    """A shared library of C that may call MPI; its path."""
    source, made = folder / "library.c", folder / "library.so"
    source.write_text(textwrap.dedent(text))
    command = [*toolchain.find_mpicc(), "-shared", "-fPIC", *words, source]
    subprocess.run([*command, "-o", made, "-ldl"], check=True)
    return made
