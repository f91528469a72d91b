# SPDX-License-Identifier: BSD-3-Clause
"""Compiles the kernels into one fat binary, and that into one C file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from toolchain import Cuda, ToolchainError

# Turing to Blackwell, each generation's code; a GPU between two of them runs
# the nearest lower one of its generation, any other compiles the PTX.
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)


def architectures(cuda: Cuda) -> list[int]:
    """Those to compile for: WARPMPI_CUDA_ARCHS, else all that nvcc knows."""
    wanted = os.environ.get("WARPMPI_CUDA_ARCHS", "")
    if wanted == "native":
        known = _known_to(cuda)
        # Of a GPU that this nvcc is too old for, the nearest lower one.
        here = {max((a for a in known if a <= g), default=g) for g in gpus()}
        return sorted(here) or known[-1:]
    if wanted:
        words = wanted.replace(",", " ").replace(";", " ").split()
        try:
            return sorted({int(word.replace(".", "")) for word in words})
        except ValueError:
            raise ToolchainError(
                f"WARPMPI_CUDA_ARCHS is {wanted!r}: set it to compute "
                "capabilities such as `80 90`, to `native`, or unset it"
            ) from None
    return _known_to(cuda)


def _known_to(cuda: Cuda) -> list[int]:
    done = subprocess.run(
        [cuda.nvcc, "--list-gpu-code"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    known = done.stdout.split()
    return [arch for arch in ARCHITECTURES if f"sm_{arch}" in known]


def gpus() -> list[int]:
    """Compute capabilities of this machine's GPUs; none without a driver."""
    path = os.environ.get("WARPMPI_CUDA_DRIVER") or "libcuda.so.1"
    # In a process of its own: drivers have been known to end those.
    done = subprocess.run(
        [sys.executable, "-c", _ASK_DRIVER, path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return [int(word) for word in done.stdout.split()]


# 75 and 76: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_ASK_DRIVER = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
value = ctypes.c_int()
told = ctypes.byref(value)
if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(told) == 0:
    for device in range(value.value):
        driver.cuDeviceGetAttribute(told, 75, device)
        major = value.value
        driver.cuDeviceGetAttribute(told, 76, device)
        print(10 * major + value.value)
"""


def options(cuda: Cuda) -> list[str]:
    """What nvcc is told, besides the files."""
    archs = architectures(cuda)
    # -fmad=false: the host gives the same bits (src/kernels/fold.h).
    words = ["-std=c++17", "-O3", "-fmad=false"]
    if os.environ.get("WARPMPI_LINEINFO") == "1":
        words.append("-lineinfo")
    for arch in archs:
        words.append(f"-gencode=arch=compute_{arch},code=sm_{arch}")
    # PTX of the lowest, not of the newest: a driver compiles it for every GPU
    # from there on that has no code of its own, those between two included.
    words.append(f"-gencode=arch=compute_{archs[0]},code=compute_{archs[0]}")
    return words


def build(cuda: Cuda, sources: list[str], folder: str) -> str:
    """Compiles them unless the folder has what became of the very same.

    Returns the path of a C file that defines wm_kernels_image, for
    cuModuleLoadData.
    """
    words = options(cuda)
    digest = hashlib.sha256(repr((words, cuda.version, sources)).encode())
    headers = {h for s in sources for h in Path(s).parent.glob("*.h")}
    for path in sorted([*map(Path, sources), *headers, Path(__file__)]):
        digest.update(path.read_bytes())
    image = Path(folder, f"kernels_image_{digest.hexdigest()[:16]}.c")
    fatbin = image.with_suffix(".fatbin")
    if not fatbin.is_file():
        fatbin.parent.mkdir(parents=True, exist_ok=True)
        _compile(cuda, sources, words, fatbin)
    if not image.is_file():
        _write_whole(image, _c_text(fatbin))
    return str(image)


def _write_whole(path: Path, text: str) -> None:
    """Another build at the same time sees all of it, or none."""
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(text)
    part.replace(path)


def _compile(
    cuda: Cuda, sources: list[str], words: list[str], fatbin: Path
) -> None:
    # One translation unit, so that there is one image and no device linker.
    unit = fatbin.with_suffix(f".{os.getpid()}.cu")
    unit.write_text(
        "".join(f'#include "{os.path.abspath(path)}"\n' for path in sources)
    )
    part = fatbin.with_suffix(f".{os.getpid()}.part")
    command = [cuda.nvcc, "-fatbin", "-Isrc", *words]
    command += ["--threads=0", "-o", str(part), str(unit)]
    if os.environ.get("WARPMPI_WERROR") == "1":
        command.append("-Werror=all-warnings")
    codes = ", ".join(w.rpartition("=")[2] for w in words if "code=" in w)
    print(f"compiling the kernels ({cuda.nvcc}: {codes})", flush=True)
    # Only the registry's wheels need to be told where they are.
    environment = dict(os.environ, CUDA_HOME=cuda.home)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, env=environment)
    if done.returncode != 0:
        raise ToolchainError(
            f"nvcc ({cuda.nvcc}, release {cuda.version[0]}.{cuda.version[1]})"
            " could not compile the kernels: see its message above"
        )
    part.replace(fatbin)
    unit.unlink()


def _c_text(fatbin: Path) -> str:
    # The assembler takes it as it is: a compiler would take ten seconds, and
    # half a gigabyte, for an array with these values.
    path = str(fatbin.resolve()).replace("\\", r"\\").replace('"', r"\"")
    lines = [
        ".pushsection .rodata",
        ".balign 16",
        ".globl wm_kernels_image",
        ".hidden wm_kernels_image",
        ".type wm_kernels_image, %object",
        "wm_kernels_image:",
        f'.incbin "{path}"',
        ".size wm_kernels_image, . - wm_kernels_image",
        ".popsection",
    ]
    return (
        "// Generated from src/kernels by the build.\n"
        f"__asm__({json.dumps(chr(10).join(lines))});\n"
    )
