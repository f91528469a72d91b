# SPDX-License-Identifier: BSD-3-Clause
"""A change of a protocol is seen in the calls that it makes (tests/golden)."""

import os

import pytest
from mpi4py import MPI

import compiled
import kinds
import ranks
import warpmpi as wm

GOLDEN = ranks.ROOT / "tests" / "golden"

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        kinds.is_real() or not wm.is_cuda_available(),
        reason="the simulated driver tells its calls",
    ),
    pytest.mark.skipif(
        not MPI.Get_library_version().startswith("Open MPI v5"),
        reason="another MPI's calls differ in a few places",
    ),
]


def test_the_calls_are_those_written_down(tmp_path):
    """To write them down anew: WARPMPI_TEST_WRITE=1."""
    text = (GOLDEN / "mpi_calls.c").read_text()
    traced = compiled.library(tmp_path, text)
    preload = " ".join(
        filter(None, [os.environ.get("LD_PRELOAD"), str(traced)])
    )
    printed = ranks.run(
        GOLDEN / "scenarios.py",
        GOLDEN / "expected",
        *(["--write"] if "WARPMPI_TEST_WRITE" in os.environ else []),
        LD_PRELOAD=preload,
        SIMCUDA_MODE="eager",
        PYTHONWARNINGS="ignore::RuntimeWarning",
    )
    assert printed == ""
