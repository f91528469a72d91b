# SPDX-License-Identifier: BSD-3-Clause
"""`python -m warpmpi --version`: what is there, and what is missing.

Nothing here needs warpmpi's core, mpi4py or a driver to be there.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ._library import brief


def show(text: str) -> None:
    """Print a text on stdout, whose reader may have left (`| head`)."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python writes what is left once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _packages() -> str:
    from ._doctor import facts

    told = facts.of_installation()
    return (
        f"warpmpi {told['warpmpi'] or 'of no known version'}, mpi4py "
        f"{told['mpi4py'] or 'missing'}, NumPy {told['numpy'] or 'missing'}, "
        f"Python {told['python']}"
    )


def _mpi() -> str:
    """Return what the MPI says of itself, without MPI_Init."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return f"MPI: none: {brief(str(error))}"
    return MPI.Get_library_version().strip(" \n\0")


def _gpus(warpmpi: Any) -> str:
    """Return the number of GPUs in words, or why there is none."""
    count = warpmpi.get_cuda_device_count()
    version = warpmpi.get_cuda_driver_version()
    if count > 0 and version is not None:
        return f"GPUs: {count}, driver for CUDA {version[0]}.{version[1]}"
    try:
        warpmpi.get_device("cuda")
    except (ValueError, RuntimeError) as error:
        text = str(error)  # the driver's is in brackets
        return f"GPUs: none: {text.partition(' (')[2][:-1] or text}"
    return "GPUs: none"


def show_version() -> str | None:
    """Show all versions; return why warpmpi cannot be imported, if so."""
    lines, missing = [_packages(), _mpi()], None
    if not hasattr(sys.modules["warpmpi"], "install"):
        del sys.modules["warpmpi"]  # an empty namespace, which a start left
    try:
        import warpmpi

        lines += [_gpus(warpmpi)]
        lines += [f"switch points: {warpmpi._points.source()}"]
    except (ImportError, RuntimeError) as error:
        missing = (
            f"python -m warpmpi: warpmpi cannot be imported: {error} "
            "(`python -m warpmpi doctor` examines the installation)"
        )
    show("\n".join(lines))
    return missing
