# SPDX-License-Identifier: BSD-3-Clause
"""Random calls of windows, as tests/random_windows.py makes them."""

import os

import pytest

import kinds
import random_windows
import ranks
import warpmpi as wm

pytestmark = pytest.mark.skipif(
    not wm.is_cuda_available(), reason="windows of host memory are MPI's"
)
PROGRAM = ranks.ROOT / "tests" / "random_windows.py"
FULL = "1" in map(os.environ.get, ("WARPMPI_TEST_FULL", "WARPMPI_TEST_GPU"))


@pytest.mark.parametrize("used", [kinds.KINDS, ["device"]])
def test_random_windows(comm, used):
    random_windows.run(comm, 1, 0, 100 if FULL else 10, used)


@pytest.mark.programs
@pytest.mark.parametrize("level", ["multiple", "single"])
@pytest.mark.parametrize("count, apart", [(2, 1), (4, 2)])
def test_random_windows_between_hosts(count, apart, level):
    told = ranks.run(
        PROGRAM,
        "--plans",
        20,
        "--apart",
        apart,
        ranks=count,
        MPI4PY_RC_THREAD_LEVEL=level,
    )
    assert f"20 plans, every one right, on {count} ranks" in told


@pytest.mark.programs
def test_the_words_of_the_program_are_told():
    """The program ends well, without a traceback."""
    told = ranks.run(PROGRAM, "--help", ranks=1)
    assert "plan to begin with" in told
