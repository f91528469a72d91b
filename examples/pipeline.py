# SPDX-License-Identifier: BSD-3-Clause
"""A pipeline on a stream: each rank works on a piece, and passes it on.

    mpirun -n 4 python pipeline.py

Messages of comm.on(stream) are ordered by the stream, as kernels are. The host gives all
work to the stream and waits once, at the end.
"""

import contextlib
import importlib.util

from mpi4py import MPI

import warpmpi as wm

if wm.is_cuda_available() and importlib.util.find_spec("cupy"):
    import cupy as xp

    xp.cuda.Device(wm.get_device().ordinal).use()  # a GPU for each rank of a host
else:
    import numpy as xp

PIECES = 8
comm = wm.Comm(MPI.COMM_WORLD)
channel, stream = comm, contextlib.nullcontext()
if xp.__name__ == "cupy":
    stream = xp.cuda.Stream(non_blocking=True)
    channel = comm.on(stream)

pieces = [xp.full(10_000, float(number)) for number in range(PIECES)]
with stream:
    for piece in pieces:
        if comm.rank > 0:
            channel.Recv(piece, comm.rank - 1)
        piece += 1.0  # the work of this rank: a kernel on the stream
        if comm.rank < comm.size - 1:
            channel.Send(piece, comm.rank + 1)
if xp.__name__ == "cupy":
    stream.synchronize()

ends = [float(piece[0]) for piece in pieces]
assert ends == [number + comm.rank + 1 for number in range(PIECES)]
if comm.rank == comm.size - 1:
    print(f"{PIECES} pieces with {xp.__name__} went through {comm.size} ranks")
