# SPDX-License-Identifier: BSD-3-Clause
"""Collectives of all forms and kinds of memory at random, each byte verified.

The same as the program tests/random_collectives.py, which says how to see a
failure again. WARPMPI_TEST_SEED gives others, WARPMPI_TEST_FULL=1 more.
"""

import os

import pytest
from mpi4py import MPI

import kinds
import random_calls
import random_collectives
import random_kernels
import ranks
import warpmpi as wm
from cases import settle

SEED = int(os.environ.get("WARPMPI_TEST_SEED", "1"))
FULL = os.environ.get("WARPMPI_TEST_FULL") == "1"
# Open MPI 4 hangs in nonblocking ones by itself (--plain shows it), and MPICH
# has limits of its own.
BLOCKING = "--forms blocking" if random_calls.OTHER else ""
PROGRAM = ranks.ROOT / "tests" / "random_collectives.py"
KERNELS = ranks.ROOT / "tests" / "random_kernels.py"

pytestmark = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE,
    reason="uses the stock waits of mpi4py",
)


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_random_collectives(world, seed):
    count = 5000 if kinds.is_real() else 150
    size = 4 << 20 if kinds.is_real() else 60_000
    random_collectives.run(
        world,
        f"--seed {seed} --collectives {count} --max-bytes {size} "
        f"--patience 0 {BLOCKING}".split(),
    )


@pytest.mark.skipif(not wm.is_cuda_available(), reason="needs a GPU")
def test_random_kernels(world):
    count, size = (5000, 8 << 20) if kinds.is_real() else (150, 1 << 20)
    settle(wm.Comm(world))  # some of these calls only GPUs can do
    random_kernels.run(
        world,
        f"--seed {SEED} --collectives {count} --max-bytes {size} "
        f"--patience 0".split(),
    )


# Switch points, where short blocks go the ways of long ones.
WAYS = {
    "as built in": "",
    "by LL128": "--points 0 4194304 0 0 0 0",
    "by Simple": "--points 0 0 0 0 0 0",
    "by LL128 in parts": "--points 0 0 12582912 0 0 0",
}


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("ways", list(WAYS))
def test_random_kernels_of_a_gpu_each(number, ways):
    count = "5000" if FULL else "80"
    printed = ranks.run(
        KERNELS,
        *f"--seed {SEED + number} --collectives {count}".split(),
        *WAYS[ways].split(),
        *f"--max-bytes {4 << 20} --patience 60".split(),
        ranks=number,
        timeout=580,
        SIMCUDA_DEVICES=str(number),
        SIMCUDA_LAZY_US="3000",
    )
    assert "every byte right" in printed


SETTINGS = {
    "delayed": {"SIMCUDA_MODE": "delay", "SIMCUDA_DELAY_US": "500"},
    "without peer access": {"SIMCUDA_PEER": "0"},
    "without IPC": {"SIMCUDA_IPC": "0"},
    "one GPU for all": {"SIMCUDA_DEVICES": "1"},
    "a GPU for each": {"SIMCUDA_DEVICES": "4"},
    "checked": {"WARPMPI_CHECK": "1"},
    "by MPI itself": {},
}


@pytest.mark.programs
@pytest.mark.skipif(kinds.is_real(), reason="needs the simulated driver")
@pytest.mark.skipif(not FULL, reason="only with WARPMPI_TEST_FULL=1")
@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("name", list(SETTINGS))
def test_random_collectives_where(name, number):
    words = f"--seed {SEED + number} --max-bytes 300000 --patience 60".split()
    words += ["--collectives", "3000"]
    words += ["--plain"] * (name == "by MPI itself")
    printed = ranks.run(
        PROGRAM,
        *words,
        ranks=number,
        timeout=580,
        SIMCUDA_LAZY_US="3000",
        **SETTINGS[name],
    )
    assert "every one right" in printed
