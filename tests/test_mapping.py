# SPDX-License-Identifier: BSD-3-Clause
"""Mappings of peers' memory: tests/c/notices.c."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "build_tools"))
import toolchain  # noqa: E402


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = toolchain.find_mpicc()
    if compiler is None:
        pytest.skip("no MPI compiler")
    try:
        folders = toolchain.find_cuda().include_dirs
    except toolchain.ToolchainError as error:
        pytest.skip(str(error))
    made = tmp_path_factory.mktemp("mapping") / "notices"
    words = [*compiler, "-g", "-std=c11", "-pthread", f"-I{ROOT / 'src'}"]
    words += [f"-I{folder}" for folder in folders]
    words += [str(ROOT / "tests/c/notices.c")]
    words += [str(ROOT / f"src/comm/{n}.c") for n in ("mapping", "stats")]
    subprocess.run([*words, "-o", str(made)], check=True)
    return made


@pytest.mark.parametrize("case", range(3), ids=["one", "full", "wrapped"])
def test_notices(program, case):
    done = subprocess.run(
        [program, str(case)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
