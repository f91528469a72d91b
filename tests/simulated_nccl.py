# SPDX-License-Identifier: BSD-3-Clause
"""Ranks on hosts of their own, between which NCCL moves.

With the simulated driver it is the simulated NCCL; else the machine's, for
which ranks of one GPU are hosts as well (NCCL_HOSTID).
"""

import os

import ranks
from warpmpi import _core

FOLDER = ranks.ROOT / "build" / "simnccl"
# Without MPI the other engines do short calls, too.
ENGINES = ",".join(name for name in _core._coll_engines() if name != "mpi")
APART = """
import os
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
os.environ["WARPMPI_HOST"] = os.environ["NCCL_HOSTID"] = f"host {rank}"
"""


def environment(**changes):
    """What ranks need to find it, and to use it for calls of any length."""
    found = {
        "NCCL_SOCKET_IFNAME": "lo",
        "WARPMPI_ENGINES": ENGINES,
        **changes,
    }
    if "WARPMPI_CUDA_DRIVER" in os.environ:
        paths = [str(FOLDER), *filter(None, [os.getenv("LD_LIBRARY_PATH")])]
        found.setdefault("LD_LIBRARY_PATH", os.pathsep.join(paths))
    return found
