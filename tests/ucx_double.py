# SPDX-License-Identifier: BSD-3-Clause
"""Programs on the double of UCX (tests/simucx) over the simulated driver."""

import pytest
from mpi4py import MPI

import kinds
import ranks
import warpmpi as wm

DOUBLE = {
    "LD_LIBRARY_PATH": str(ranks.ROOT / "build" / "simucx"),
    "OMPI_MCA_pml": "ob1",
    "WARPMPI_TRANSPORT": "ucx",
}
OPEN_MPI = MPI.Get_library_version().startswith("Open MPI")

MARKS = [
    pytest.mark.programs,
    pytest.mark.skipif(
        kinds.is_real() or not wm.is_cuda_available() or not OPEN_MPI,
        reason="needs the simulated driver, and an MPI that can do without "
        "UCX, as the double takes its place",
    ),
]

needs_failures = pytest.mark.skipif(
    not MPI.Get_library_version().startswith("Open MPI v5"),
    reason="needs Open MPI 5",
)


def run(folder, text, apart=False, **options):
    """run_text() with the double; apart: each rank on a host of its own."""
    if apart:
        script = folder / "host.sh"
        script.write_text(
            "#!/bin/sh\nexport WARPMPI_HOST=h"
            '${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\nexec "$@"\n'
        )
        script.chmod(0o755)
        options["wrapper"] = [str(script)]
    return ranks.run_text(folder, text, **{**DOUBLE, **options})


def run_unasked(folder, text, transports="rc_mlx5", **options):
    """run() apart, where nobody asks for UCX, with these transports."""
    options = {"WARPMPI_TRANSPORT": "", **options}
    return run(folder, text, True, SIMUCX_TRANSPORTS=transports, **options)


# What all programs begin with.
BEGIN = """
    import ctypes, os, signal, time
    import numpy as np
    from mpi4py import MPI
    import warpmpi as wm

    comm, device = wm.Comm(MPI.COMM_WORLD), wm.get_device()
    other = 1 - comm.rank
    double = ctypes.CDLL("libucp.so.0", mode=os.RTLD_NOLOAD)
    double.simucx_live.restype = double.simucx_calls.restype = ctypes.c_long

    def make(kind, values):
        return wm.array(values, device=device) if kind == "d" else values

    def bytes_of(array):
        return array if isinstance(array, np.ndarray) else array.numpy()

    def exchange(comm, ours, theirs, size):
        sent = (np.arange(size) + size).astype(np.uint8)
        into = make(theirs, np.zeros(size, np.uint8))
        comm.Sendrecv(make(ours, sent), other, 0, into, other, 0)
        assert (bytes_of(into) == sent).all(), (ours, theirs, size)
"""
