# SPDX-License-Identifier: BSD-3-Clause
"""The environment variables that there are, so that others are told of."""

import difflib
import os
import warnings

from . import _core

# Those that are read at run time are rows of src/cuda/settings.h, of which
# docs/guide.md tells; the top of setup.py tells of the build's.
NAMES = frozenset(_core._settings()) | frozenset(
    """
    WARPMPI_ABIS WARPMPI_CUDA WARPMPI_CUDA_ARCHS WARPMPI_KERNELS
    WARPMPI_LINEINFO WARPMPI_SANITIZE WARPMPI_WERROR

    WARPMPI_BENCH_CUDA_AWARE_MPI WARPMPI_TEST_EVERY WARPMPI_TEST_FULL
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
