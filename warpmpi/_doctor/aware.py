# SPDX-License-Identifier: BSD-3-Clause
"""A message of GPU memory by MPI alone, in a child process that may crash."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from .driver import Driver

NBYTES = 1 << 16
# What a launcher tells its ranks: the child is alone.
_LAUNCHERS = "OMPI_ PMIX_ PRTE_ PMI_ PMI2_ HYDRA_ MPI_LOCAL MV2_COMM SLURM_"
_KEPT = (
    "OMPI_ALLOW_RUN OMPI_MCA_btl OMPI_MCA_pml OMPI_MCA_mtl "
    "OMPI_MCA_opal_cuda OMPI_MCA_mpi_cuda"
)


def environment() -> dict[str, str]:
    """Return this environment as if no launcher had made it."""
    launchers, kept = tuple(_LAUNCHERS.split()), tuple(_KEPT.split())
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(kept) or not name.startswith(launchers)
    }


def facts(ordinal: int) -> dict[str, Any]:
    """Send GPU memory from this process to itself, and compare the bytes."""
    from mpi4py import MPI

    driver = Driver()
    driver.call("Init", 0)
    sent = bytes(i % 251 for i in range(NBYTES))
    came = ctypes.create_string_buffer(NBYTES)
    size = ctypes.c_size_t(NBYTES)
    with driver.context(ordinal):
        source, target = driver.allocate(NBYTES), driver.allocate(NBYTES)
        driver.call("MemcpyHtoD", source, sent, size)
        driver.call("MemcpyHtoD", target, bytes(NBYTES), size)
        buffers = [
            (MPI.memory.fromaddress(each.value, NBYTES), MPI.BYTE)
            for each in (source, target)
        ]
        MPI.COMM_SELF.Sendrecv(buffers[0], 0, 0, buffers[1], 0, 0)
        driver.call("MemcpyDtoH", came, target, size)
    right = came.raw == sent
    return {"works": right, "how": "right" if right else "wrong bytes came"}
