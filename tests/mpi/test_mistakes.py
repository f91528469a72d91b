# SPDX-License-Identifier: BSD-3-Clause
"""Errors of a new user's mistakes name the argument and the cure."""

import sys

import pytest

import ranks

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        sys.version_info < (3, 11), reason="MPI's errors have no notes"
    ),
]


@pytest.mark.parametrize("driver", [None, "/none"])
def test_errors_of_mistakes_name_argument_and_cure(driver):
    away = {} if driver is None else {"WARPMPI_CUDA_DRIVER": driver}
    ranks.run(ranks.ROOT / "tests" / "mistakes.py", **away)


@pytest.mark.parametrize("driver", [None, "/none"])
def test_without_ml_dtypes_an_array_of_bfloat16_prints_and_moves(driver):
    away = {} if driver is None else {"WARPMPI_CUDA_DRIVER": driver}
    program = """
import sys
sys.modules["ml_dtypes"] = None
from mpi4py import MPI
import warpmpi as wm
comm = wm.Comm(MPI.COMM_WORLD)
mine, theirs = wm.zeros(3, "bfloat16"), wm.empty(3, "bfloat16")
assert "shape=(3,), dtype=bfloat16" in repr(mine), repr(mine)
comm.Sendrecv(mine, 1 - comm.rank, recvbuf=theirs, source=1 - comm.rank)
for call in (mine.numpy, lambda: wm.array([1.0], "bfloat16")):
    try:
        call()
    except TypeError as error:
        assert "bfloat16 only with the package ml_dtypes" in str(error)
        assert "install ml_dtypes" in str(error)
    else:
        raise AssertionError(call)
"""
    ranks.run("-c", program, **away)
