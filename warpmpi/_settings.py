# SPDX-License-Identifier: BSD-3-Clause
"""The environment variables that there are, so that others are told of."""

import difflib
import os
import warnings
from typing import NamedTuple

from . import _core


class Setting(NamedTuple):
    """A row of src/cuda/settings.h, whose comments tell of the columns."""

    type: str
    default: str
    values: str
    ranks: str
    help: str


# Those that are read at run time, of which docs/environment.md has a table.
# The top of setup.py tells of the build's.
TABLE = {name: Setting(*row) for name, row in _core._settings().items()}
NAMES = frozenset(TABLE) | frozenset(
    """
    WARPMPI_ABIS WARPMPI_CUDA WARPMPI_CUDA_ARCHS WARPMPI_KERNELS
    WARPMPI_LINEINFO WARPMPI_SANITIZE WARPMPI_TOYS WARPMPI_WERROR

    WARPMPI_BENCH_CUDA_AWARE_MPI WARPMPI_BENCH_NCCL
    WARPMPI_BENCH_NVIDIA_JACOBI WARPMPI_TEST_EVERY WARPMPI_TEST_FULL
    WARPMPI_TEST_GPU WARPMPI_TEST_MPIRUN WARPMPI_TEST_PRODUCERS
    WARPMPI_TEST_RESULTS WARPMPI_TEST_SEED WARPMPI_TEST_STDERR
    WARPMPI_TEST_TIMEOUT WARPMPI_TEST_WRITE
    """.split()
)


def check_names() -> None:
    """Warn of each variable that looks like ours and is none."""
    for name in sorted(os.environ):
        if not name.startswith("WARPMPI_") or name in NAMES:
            continue
        near = difflib.get_close_matches(name, sorted(NAMES), 1)
        meant = f": is {near[0]} meant?" if near else ""
        warnings.warn(
            f"warpmpi knows no environment variable {name}{meant}",
            RuntimeWarning,
            stacklevel=3,
        )
