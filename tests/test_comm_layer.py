# SPDX-License-Identifier: BSD-3-Clause
"""Parts of the third layer, tested from C without what is around them."""

import shutil
import subprocess

import pytest

import compiled
from ranks import ROOT


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comm")
    words = f"-I{ROOT / 'warpmpi/include'}", '-DWM_VERSION="0"'

    def make(name, *parts):
        made = folder / name
        sources = f"tests/c/{name}.c", *(f"src/{part}.c" for part in parts)
        if not made.exists():
            compiled.parts(made, *sources, words=words, mpi=True, kernels=True)
        return str(made)

    return make


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 0),
        ({"cpu.max": "max 100000"}, 0),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100"}, 0),
        ({"cpu/cpu.cfs_quota_us": "150", "cpu/cpu.cfs_period_us": "100"}, 2),
        ({"cpu/cpu.cfs_quota_us": "150"}, 0),
    ],
)
def test_the_quota_of_a_container(build, tmp_path, files, cores):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n")
    program = build("cores", "comm/engine/cores")
    done = subprocess.run([program, tmp_path], capture_output=True, text=True)
    assert done.stdout == f"{cores}\n"


MAPPED = "comm/node/mapping", "comm/node/rkey", "comm/engine/stats"
STRIDED = "array/strided", "array/layout", "array/dtype", "cuda/error"


@pytest.mark.parametrize(
    "case",
    "one full wrapped background resting wanted exports addresses".split(),
)
def test_notices(build, case):
    run(build("notices", *MAPPED, "cuda/freeing"), case)


@pytest.mark.parametrize("words", [(), ("first",)])
def test_peers_are_found_by_their_ids(build, words):
    run(build("peers", "comm/node/node", "cuda/error"), *words)


def test_what_another_rank_tells_of_shared_memory_is_checked(build):
    run(build("symm_memory", "comm/node/symm_memory"))


def test_a_kept_set_of_transfers(build):
    """The noun needs nothing of collectives."""
    names = "transfer_set", "transfer_region", "strided_desc"
    parts = (f"comm/transfer/{name}" for name in names)
    run(build("transfer_set", *parts, *STRIDED))


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
    parts = "comm/transfer/epochs", "comm/node/segment_words", "cuda/*"
    run(build("epochs", *parts), case)


def test_gaps_that_another_rank_tells_are_checked(build):
    run(build("target_layout", "comm/rma/target_layout", "cuda/error"))


def test_strided_memory_that_shares_a_byte(build):
    run(build("strided", *STRIDED))


def test_host(build):
    run(build("host", "comm/node/node", "cuda/settings"))


@pytest.mark.parametrize(
    ("name", "parts"), [("plan", ["comm/coll/direct/plan"]), ("ll", [])]
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
