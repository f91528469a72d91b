# SPDX-License-Identifier: BSD-3-Clause
"""Random calls, any of which any rank makes wrongly at first.

The same as the program tests/random_refusals.py. WARPMPI_TEST_SEED gives
others, WARPMPI_TEST_FULL=1 more.
"""

import os

import pytest
from mpi4py import MPI

import kinds
import random_refusals

SEED = int(os.environ.get("WARPMPI_TEST_SEED", "1"))
FULL = os.environ.get("WARPMPI_TEST_FULL") == "1" or kinds.is_real()

pytestmark = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE,
    reason="several threads call MPI",
)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("wrong", [0.2, 0.8])
def test_random_refusals(world, threads, wrong):
    steps = 1000 if FULL else 100
    refused, right = random_refusals.run(
        world,
        f"--seed {SEED} --steps {steps} --threads {threads} "
        f"--wrong {wrong} --patience 0".split(),
    )
    assert refused > 0
    assert right > 0
