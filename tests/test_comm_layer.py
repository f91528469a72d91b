# SPDX-License-Identifier: BSD-3-Clause
"""Parts of the third layer, tested from C without what is around them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import warpmpi as wm

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "warpmpi" / "include"
sys.path.insert(0, str(ROOT / "build_tools"))
import toolchain  # noqa: E402


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    compiler = toolchain.find_mpicc()
    if compiler is None:
        pytest.skip("no MPI compiler")
    try:
        folders = toolchain.find_cuda().include_dirs
    except toolchain.ToolchainError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("comm")

    def make(name, *parts):
        if (folder / name).exists():
            return str(folder / name)
        words = [*compiler, "-g", "-std=c11", "-pthread"]
        words += [f"-I{path}" for path in (ROOT / "src", INCLUDE, *folders)]
        words += ['-DWM_VERSION="0"', str(ROOT / f"tests/c/{name}.c")]
        words += [str(ROOT / f"src/comm/{part}.c") for part in parts]
        kernels = Path(wm._core.__file__).with_name("_kernels.so")
        words += [str(kernels), f"-Wl,-rpath,{kernels.parent}"]
        words += ["-o", str(folder / name), "-ldl"]
        subprocess.run(words, check=True)
        return str(folder / name)

    return make


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "case",
    "one full wrapped background resting wanted exports addresses".split(),
)
def test_notices(build, case):
    run(build("notices", "node/mapping", "node/rkey", "engine/stats"), case)


def test_what_another_rank_tells_of_shared_memory_is_checked(build):
    run(build("symm_memory", "node/symm_memory"))


def test_a_kept_set_of_transfers(build):
    """The noun needs nothing of collectives."""
    transfer = "transfer_set", "transfer_region", "strided_desc"
    parts = "array/strided", "array/layout", "array/dtype", "cuda/error"
    parts = (
        *(f"transfer/{part}" for part in transfer),
        *(f"../{part}" for part in parts),
    )
    run(build("transfer_set", *parts))


@pytest.mark.parametrize(
    "case",
    [
        "rounds_on_a_stream",
        "rounds_of_two_processes",
        "replays",
        "on_the_host",
        "a_dead_neighbor",
        "words_run_out",
    ],
)
def test_ranks_that_wait_for_neighbors_alone(build, case):
    """Streams and words are real; no host waits between rounds."""
    parts = ["transfer/epochs", "node/segment_words"]
    paths = (ROOT / "src/cuda").glob("*.c")
    parts += [f"../cuda/{path.stem}" for path in paths]
    run(build("epochs", *parts), case)


def test_gaps_that_another_rank_tells_are_checked(build):
    run(build("target_layout", "rma/target_layout", "../cuda/error"))


def test_strided_memory_that_shares_a_byte(build):
    parts = "array/strided", "array/layout", "array/dtype", "cuda/error"
    run(build("strided", *(f"../{part}" for part in parts)))


def test_host(build):
    run(build("host", "node/node", "../cuda/settings"))


@pytest.mark.parametrize(
    ("name", "parts"), [("plan", ["coll/direct/plan"]), ("ll", [])]
)
def test_all_ranks_count_alike(build, name, parts):
    run(build(name, *parts))


def test_a_channel_without_a_chunk_goes_on(tmp_path):
    program = str(tmp_path / "simple")
    words = ["g++", "-std=c++17", "-pthread", f"-I{ROOT / 'src'}"]
    words += [str(ROOT / "tests/c/simple.cpp"), "-o", program]
    if shutil.which(words[0]) is None:
        pytest.skip("no C++ compiler")
    subprocess.run(words, check=True)
    run(program)
