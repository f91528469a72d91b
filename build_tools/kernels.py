# SPDX-License-Identifier: BSD-3-Clause
"""Compiles each file of kernels into a compressed fat binary, in parallel.

A folder keeps them, named by what they were made from: only what changed is
compiled, and several trees may share the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

import progress
from toolchain import Cuda, ToolchainError

# One of each generation: a GPU runs the code of a lower number with the same
# first digits. Others compile the PTX.
ARCHITECTURES = (75, 80, 90, 100, 120)
CLUSTERS = 90  # from here on kernels/group.h makes clusters


def architectures(cuda: Cuda) -> list[int]:
    """Those to compile for: WARPMPI_CUDA_ARCHS, else all that nvcc knows.

    None, `native` without a GPU: there is PTX, which a driver compiles.
    """
    wanted = os.environ.get("WARPMPI_CUDA_ARCHS", "")
    if wanted == "native":
        known = _known_to(cuda)
        # Of a GPU that this nvcc is too old for, the nearest lower one.
        here = {max((a for a in known if a <= g), default=g) for g in gpus()}
        return sorted(here)
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


def _code_options(archs: list[int], makes_clusters: bool) -> list[str]:
    """One PTX serves all: the front end, the longest step, runs once.

    A file that makes clusters has another PTX from there on. The PTX stays in
    the binary: a driver compiles it for every GPU that has no code here.
    """
    if not archs:
        oldest = ARCHITECTURES[0]
        return [f"-gencode=arch=compute_{oldest},code=compute_{oldest}"]
    groups = [archs]
    if makes_clusters:
        groups = [
            [arch for arch in archs if arch < CLUSTERS],
            [arch for arch in archs if arch >= CLUSTERS],
        ]
    options = []
    for group in filter(None, groups):
        codes = [f"sm_{arch}" for arch in group] + [f"compute_{group[0]}"]
        code = ",".join(codes)
        options.append(f"-gencode=arch=compute_{group[0]},code=[{code}]")
    return options


def _codes(archs: list[int]) -> str:
    return " ".join([*(f"sm_{arch}" for arch in archs), "PTX"])


def options(cuda: Cuda, archs: list[int], makes_clusters: bool) -> list[str]:
    """What nvcc is told, besides the files."""
    # -fmad=false: the host gives the same bits (src/kernels/fold.h).
    words = ["-std=c++17", "-O3", "-fmad=false", "--threads=0"]
    if cuda.version >= (12, 9):
        words.append("--compress-mode=size")
    else:
        words.append("-Xfatbin=-compress-all")
    if os.environ.get("WARPMPI_LINEINFO") == "1":
        words.append("-lineinfo")
    return words + _code_options(archs, makes_clusters)


# Of the headers that programs include as well.
INCLUDE = Path("warpmpi", "include")


def _with_headers(source: str) -> list[Path]:
    """A file and all that it includes of src and of what programs include."""
    found, queue = [], [Path(source)]
    roots = {'"': Path(source).parent.parent, "<": INCLUDE}
    for path in queue:
        if path in found or not path.is_file():
            continue
        found.append(path)
        names = re.findall(
            r'^#\s*include (["<])(.+)[">]', path.read_text(), re.M
        )
        queue += [roots[mark] / name for mark, name in names]
    return found


def makes_clusters(source: str) -> bool:
    """Whether newer GPUs get other code than older ones."""
    return any(path.name == "group.h" for path in _with_headers(source))


def begin(
    cuda: Cuda, sources: list[str], folder: str, pool: Executor
) -> Callable[[], str]:
    """Begins to compile those that the folder does not have yet.

    Returns a function that waits, and returns the path of a C file that
    defines wm_kernels_images, for cuModuleLoadData.
    """
    archs = architectures(cuda)
    binaries, jobs = [], []
    # The longest first.
    for source in sorted(sources, key=os.path.getsize, reverse=True):
        words = options(cuda, archs, makes_clusters(source))
        digest = hashlib.sha256(repr((words, cuda.version)).encode())
        for path in [*_with_headers(source), Path(__file__)]:
            digest.update(path.read_bytes())
        name = f"{Path(source).stem}.{digest.hexdigest()[:16]}.fatbin"
        binaries.append(Path(folder, name))
        if not binaries[-1].is_file():
            jobs.append((cuda, source, words, binaries[-1]))
    if jobs:
        Path(folder).mkdir(parents=True, exist_ok=True)
        progress.say(
            f"compiling {len(jobs)} files of kernels for {_codes(archs)} "
            f"({cuda.nvcc}, CUDA {cuda.version[0]}.{cuda.version[1]})"
        )
    done = [pool.submit(_compile, *job) for job in jobs]

    def finish() -> str:
        for one in done:
            one.result()
        return _write_whole(folder, _c_text(binaries, cuda, archs))

    return finish


def _write_whole(folder: str, text: str) -> str:
    digest = hashlib.sha256(text.encode())
    image = Path(folder, f"kernels_{digest.hexdigest()[:16]}.c")
    if not image.is_file():
        part = image.with_suffix(f".{os.getpid()}.part")
        part.write_text(text)
        part.replace(image)
    return str(image)


def _compile(cuda: Cuda, source: str, words: list[str], binary: Path) -> None:
    begun = time.monotonic()
    part = binary.with_suffix(f".{os.getpid()}.part")
    command = [cuda.nvcc, "-fatbin", "-Isrc", f"-I{INCLUDE}", *words]
    command += ["-o", str(part), source]
    if os.environ.get("WARPMPI_WERROR") == "1":
        command.append("-Werror=all-warnings")
    # Only the registry's wheels need to be told where they are.
    environment = dict(os.environ, CUDA_HOME=cuda.home)
    with progress.doing(f"compiling {source}"):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, env=environment
        )
    if done.returncode != 0:
        raise ToolchainError(
            f"nvcc ({cuda.nvcc}, release {cuda.version[0]}.{cuda.version[1]})"
            f" could not compile {source}: see its message above"
        )
    # Another build at the same time sees all of it, or none.
    part.replace(binary)
    seconds = time.monotonic() - begun
    progress.say(f"compiled {source} in {seconds:.0f} s")


def _c_text(binaries: list[Path], cuda: Cuda, archs: list[int]) -> str:
    # The assembler takes them as they are: a compiler would take long, and
    # much memory, for arrays with these values.
    images, table = [], []
    for number, binary in enumerate(binaries):
        path = str(binary.resolve()).replace("\\", r"\\").replace('"', r"\"")
        images += [".balign 16", f"image_{number}:", f'.incbin "{path}"']
        images += [f'file_{number}: .asciz "{binary.name.split(".")[0]}"']
        table += [f".quad file_{number}, image_{number}"]
    version = 1000 * cuda.version[0] + 10 * cuda.version[1]
    images += [".balign 4", ".globl wm_kernels_cuda"]
    images += [".type wm_kernels_cuda, %object", "wm_kernels_cuda:"]
    images += [f".long {version}", ".size wm_kernels_cuda, 4"]
    images += [".globl wm_kernels_codes", ".type wm_kernels_codes, %object"]
    images += [f'wm_kernels_codes: .asciz "{_codes(archs)}"']
    images += [".size wm_kernels_codes, . - wm_kernels_codes"]
    lines = [
        *(".pushsection .rodata", *images, ".popsection"),
        '.pushsection .data.rel.ro,"aw"',
        ".balign 8",
        ".globl wm_kernels_images",
        ".type wm_kernels_images, %object",
        *("wm_kernels_images:", *table, ".quad 0, 0"),
        ".size wm_kernels_images, . - wm_kernels_images",
        ".popsection",
    ]
    return (
        "// Made by the build from src/kernels.\n"
        f"__asm__({json.dumps(chr(10).join(lines))});\n"
    )
