# SPDX-License-Identifier: BSD-3-Clause
"""The bottom layer (driver, devices, streams, memory), tested from C."""

import os
import re
import subprocess
from pathlib import Path

import pytest

import compiled

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "c" / "cuda_layer.c"
CASES = re.findall(r"CASE\((\w+)\),", SOURCE.read_text())
SKIP = 77


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The bottom layer and its tests in one program, without Python."""
    made = tmp_path_factory.mktemp("layer") / "cuda_layer"
    return compiled.parts(made, "tests/c/cuda_layer.c", "src/cuda/*.c")


def run(program, case, **environment):
    return subprocess.run(
        [program, case],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("case", CASES)
def test_layer(program, case):
    # A device that is not too large, so that filling it takes no time; the
    # real driver does not look at this.
    done = run(program, case, SIMCUDA_MEMORY=str(1 << 30))
    if done.returncode == SKIP:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


def test_layer_lists_every_case(program):
    listed = subprocess.run(
        [program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert listed == CASES


def test_calls_are_logged_when_asked_for(program):
    case = "a_large_block_is_kept_and_reused"
    done = run(program, case, WARPMPI_LOG="cuda")
    if done.returncode == SKIP:
        pytest.skip(done.stderr.strip())
    assert "warpmpi: cuMemAlloc(&ptr, size) -> CUDA_SUCCESS" in done.stderr
    quiet = run(program, case, WARPMPI_LOG="")
    assert quiet.stderr == ""
    both = run(program, case, WARPMPI_LOG="cuda,route")
    assert both.stderr == done.stderr
    for value in "mpi", "1", "cudax", "cuda,":
        unknown = run(program, case, WARPMPI_LOG=value)
        assert unknown.stderr == (
            f"warpmpi: WARPMPI_LOG={value} is not a known value: unset it, or "
            "set it to cuda, route, or cuda,route; nothing is logged\n"
        )


def test_missing_driver_is_told_once_and_for_all(program):
    done = run(
        program,
        "small_blocks_share_a_slab",
        WARPMPI_CUDA_DRIVER="/nonexistent/libcuda.so.1",
    )
    assert done.returncode == SKIP
    assert "no CUDA driver" in done.stderr
    assert "/nonexistent/libcuda.so.1" in done.stderr
