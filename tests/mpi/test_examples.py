# SPDX-License-Identifier: BSD-3-Clause
"""The examples with Warp check their own results, and say so."""

import pytest

import ranks

EXAMPLES = ranks.ROOT / "examples"
pytestmark = pytest.mark.programs
CPU = {"WARPMPI_CUDA_DRIVER": "/no/driver"}  # Warp knows of no other


@pytest.fixture(autouse=True)
def warp():
    pytest.importorskip("warp")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_jacobi_is_correct(count):
    words = (EXAMPLES / "jacobi.py", "-nx", 65, "-ny", 67, "-niter", 60)
    printed = ranks.run(*words, ranks=count, **CPU)
    assert "largest difference to one rank 0: correct" in printed


@pytest.mark.parametrize("count", [1, 2, 3])
def test_heat_is_correct(count):
    words = (EXAMPLES / "heat3d.py", "-n", 17, "-niter", 100)
    printed = ranks.run(*words, ranks=count, **CPU)
    assert ": correct" in printed
