# SPDX-License-Identifier: BSD-3-Clause
"""The program of the jobs in this folder: a sum over all GPUs of all hosts."""

import numpy as np
from mpi4py import MPI

import warpmpi as wm

comm = wm.Comm(MPI.COMM_WORLD)
device = wm.get_device()  # of this rank; the CPU where there is no GPU
mine = wm.array(np.full(1 << 20, comm.rank + 1, "float32"), device=device)
total = wm.zeros(1 << 20, dtype="float32", device=device)
comm.Allreduce(mine, total)
expected = comm.size * (comm.size + 1) // 2
assert (total.numpy() == expected).all()
if comm.rank == 0:
    print(f"the sum of {comm.size} ranks is right: {expected}")
