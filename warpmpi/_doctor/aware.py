# SPDX-License-Identifier: BSD-3-Clause
"""A message of GPU memory by MPI alone, in a child process that may crash."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

from .driver import Driver
from .facts import set_by_launcher

NBYTES = 1 << 16
# Launchers set variables with these prefixes for their ranks; users set some.
_LAUNCHERS = "OMPI_ PMIX_ PRTE_ PMI_ PMI2_ HYDRA_ MPI_LOCAL MV2_COMM SLURM_"
_USERS = "OMPI_ALLOW_RUN OMPI_MCA_ PRTE_MCA_ PMIX_MCA_"
# Else Open MPI 4 starts a daemon, for which it needs orted, and ssh.
_ALONE = {"OMPI_MCA_ess_singleton_isolated": "1"}


def environment() -> dict[str, str]:
    """Return this environment as if no launcher had made it."""
    launchers, users = tuple(_LAUNCHERS.split()), tuple(_USERS.split())
    kept = {
        name: value
        for name, value in os.environ.items()
        if not set_by_launcher(name)
        and (name.startswith(users) or not name.startswith(launchers))
    }
    return {**_ALONE, **kept}


def facts(ordinal: int) -> dict[str, Any]:
    """Send GPU memory from this process to itself, and compare the bytes."""
    from mpi4py import MPI

    print(json.dumps({"started": True}), flush=True)
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
