# SPDX-License-Identifier: BSD-3-Clause
"""Ranks on hosts of their own, between which NCCL moves.

With the simulated driver it is the simulated NCCL; else the machine's, for
which ranks of one GPU are hosts as well (NCCL_HOSTID).
"""

import os

import pytest

import compiled
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
        found.setdefault("LD_LIBRARY_PATH", _first(FOLDER))
    return found


def faulty(folder, counted=False, **changes):
    """As environment(), where a test lets calls of NCCL fail, or kill.

    The simulated NCCL can do so itself. Between us and the real one, or with
    `counted`, stands nccl_faults.c, made in the folder.
    """
    path, error = str(FOLDER / "libnccl.so.2"), None
    if "WARPMPI_CUDA_DRIVER" in os.environ:
        changes["SIMCUDA_MODE"] = "lazy"
        if not counted:
            return environment(**changes)
    else:
        *_, path, error = next(
            row for row in _core._coll_libraries() if row[0] == "nccl"
        )
    if path is None:
        pytest.skip(error)
    words = "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2"
    made = folder / "libnccl.so.2"
    compiled.parts(made, "tests/nccl_faults.c", words=words, mpi=True)
    return environment(
        LD_LIBRARY_PATH=_first(folder), NCCL_FAULTS_PATH=path, **changes
    )


def _first(folder):
    """The search path of libraries that begins with this folder."""
    rest = filter(None, [os.environ.get("LD_LIBRARY_PATH")])
    return os.pathsep.join([str(folder), *rest])
