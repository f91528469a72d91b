# SPDX-License-Identifier: BSD-3-Clause
"""Compiles the kernels into one fat binary, and that into one C file."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from toolchain import Cuda, ToolchainError

# Turing to Blackwell, each generation's code; a GPU between two of them runs
# the nearest lower one of its generation, any other compiles the PTX.
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)


def architectures(cuda: Cuda) -> list[int]:
    """Those to compile for: WARPMPI_CUDA_ARCHS, else all that nvcc knows."""
    wanted = os.environ.get("WARPMPI_CUDA_ARCHS", "")
    if wanted:
        words = wanted.replace(",", " ").replace(";", " ").split()
        try:
            return sorted({int(word.replace(".", "")) for word in words})
        except ValueError:
            raise ToolchainError(
                f"WARPMPI_CUDA_ARCHS is {wanted!r}: set it to compute "
                "capabilities such as `80 90`, or unset it"
            ) from None
    done = subprocess.run(
        [cuda.nvcc, "--list-gpu-code"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    known = done.stdout.split()
    return [arch for arch in ARCHITECTURES if f"sm_{arch}" in known]


def _options(cuda: Cuda) -> list[str]:
    archs = architectures(cuda)
    options = ["-std=c++17", "-O3", "-lineinfo"]
    if os.environ.get("WARPMPI_WERROR") == "1":
        options.append("-Werror=all-warnings")
    for arch in archs:
        options.append(f"-gencode=arch=compute_{arch},code=sm_{arch}")
    # PTX of the lowest, not of the newest: a driver compiles it for every GPU
    # from there on that has no code of its own, those between two included.
    options.append(f"-gencode=arch=compute_{archs[0]},code=compute_{archs[0]}")
    return options


def build(
    cuda: Cuda, sources: list[str], depends: list[str], folder: str
) -> str:
    """Writes kernels_image.c into the folder unless it is up to date.

    It defines wm_kernels_image, for cuModuleLoadData. Returns its path.
    """
    options = _options(cuda)
    digest = hashlib.sha256(repr((options, cuda.version, sources)).encode())
    for path in sorted([*sources, *depends, __file__]):
        digest.update(Path(path).read_bytes())
    mark = f"// {digest.hexdigest()}\n"
    image = Path(folder, "kernels_image.c")
    if image.is_file():
        with image.open() as file:
            if file.readline() == mark:
                return str(image)
    image.parent.mkdir(parents=True, exist_ok=True)
    fatbin = _compile(cuda, sources, options, image.parent)
    temporary = image.with_suffix(".tmp")
    temporary.write_text(mark + _c_text(fatbin))
    temporary.replace(image)
    return str(image)


def _compile(
    cuda: Cuda, sources: list[str], options: list[str], folder: Path
) -> bytes:
    # One translation unit, so that there is one image and no device linker.
    unit = folder / "kernels.cu"
    unit.write_text(
        "".join(f'#include "{os.path.abspath(path)}"\n' for path in sources)
    )
    fatbin = folder / "kernels.fatbin"
    command = [cuda.nvcc, "-fatbin", "-Isrc", *options]
    command += ["--threads=0", "-o", str(fatbin), str(unit)]
    print(" ".join(command), flush=True)
    # Only the registry's wheels need to be told where they are.
    environment = dict(os.environ, CUDA_HOME=cuda.home)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, env=environment)
    if done.returncode != 0:
        raise ToolchainError(
            f"nvcc ({cuda.nvcc}, release {cuda.version[0]}.{cuda.version[1]})"
            " could not compile the kernels: see its message above"
        )
    return fatbin.read_bytes()


def _c_text(fatbin: bytes) -> str:
    rows = [
        ",".join(map(str, fatbin[start : start + 20]))
        for start in range(0, len(fatbin), 20)
    ]
    return (
        "// Generated from src/kernels by the build.\n"
        "extern const unsigned char wm_kernels_image[];\n"
        "_Alignas(16) const unsigned char wm_kernels_image[] = {\n"
        + ",\n".join(rows)
        + "};\n"
    )
