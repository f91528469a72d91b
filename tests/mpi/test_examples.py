# SPDX-License-Identifier: BSD-3-Clause
"""The examples check their own results, and say so, or what they lack."""

import importlib.util

import pytest

import ranks
import warpmpi as wm

EXAMPLES = ranks.ROOT / "examples"
pytestmark = pytest.mark.programs
CPU = {"WARPMPI_CUDA_DRIVER": "/no/driver"}  # Warp knows of no other


needs_warp = pytest.mark.skipif(
    importlib.util.find_spec("warp") is None, reason="needs Warp"
)

LACKING = """
    import runpy, sys

    sys.modules["warp"] = sys.modules["cupy"] = None
    try:
        runpy.run_path(sys.argv.pop(1), run_name="__main__")
    except SystemExit as end:
        print("ended with", end, flush=True)
"""


@pytest.mark.parametrize("name", ["jacobi.py", "heat3d.py"])
def test_without_warp_they_say_what_to_install(tmp_path, name):
    printed = ranks.run_text(tmp_path, LACKING, EXAMPLES / name, ranks=1)
    assert "pip install warp-lang" in printed


def test_simple_ipc_says_where_its_arrays_are_and_why(tmp_path):
    words = (EXAMPLES / "simple_ipc.py", "--count", 1001)
    printed = ranks.run_text(tmp_path, LACKING, *words, ranks=1)
    assert "1 rank, arrays of 0.0 MB in the memory of the host, as" in printed
    assert "there is no peer" in printed and "GB/s" not in printed
    assert "ended with 0" in printed
    lacks = "CuPy is not" if wm.is_cuda_available() else "no GPU"
    assert lacks in printed


@needs_warp
@pytest.mark.parametrize("count", [1, 2, 3])
def test_jacobi_is_correct(count):
    words = (EXAMPLES / "jacobi.py", "-nx", 65, "-ny", 67, "-niter", 60)
    printed = ranks.run(*words, ranks=count, **CPU)
    assert "largest difference to one rank 0: correct" in printed


@needs_warp
@pytest.mark.parametrize("count", [1, 2, 3])
def test_heat_is_correct(count):
    words = (EXAMPLES / "heat3d.py", "-n", 17, "-niter", 100)
    printed = ranks.run(*words, ranks=count, **CPU)
    assert ": correct" in printed
