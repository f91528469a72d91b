# SPDX-License-Identifier: BSD-3-Clause
"""A CUDA graph with a collective: launched often, captured once.

    mpirun -n 2 python captured_graph.py

A launch takes nothing from Python or MPI. It needs CuPy and a GPU for each rank, or MPS.
"""

import importlib.util
import sys

from mpi4py import MPI

import warpmpi as wm

if not wm.is_cuda_available() or not importlib.util.find_spec("cupy"):
    sys.exit("captured_graph.py needs a GPU and CuPy: pip install cupy-cuda13x")
import cupy

comm = wm.Comm(MPI.COMM_WORLD)
cupy.cuda.Device(wm.get_device().ordinal).use()  # a GPU for each rank of a host
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    mine, total = cupy.empty(10_000), cupy.empty(10_000)
    stream.begin_capture()
    comm.on(stream).Allreduce(mine, total)
    graph = stream.end_capture()
    for step in range(10):
        mine.fill(float(comm.rank + step))
        graph.launch(stream)
        ranks = range(comm.size)
        assert float(total[0]) == sum(rank + step for rank in ranks)
if comm.rank == 0:
    print("10 launches of one captured Allreduce, each with new data")
